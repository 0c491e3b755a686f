"""Prompts: a template with texts in it, cut to a number of tokens inside the texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fedpeft.errors import UserError

SOURCE, PAIR = "{source}", "{pair}"
PLACES = re.compile(f"({re.escape(SOURCE)}|{re.escape(PAIR)})")


def prompt_tokens(
    sources: Sequence[str],
    pairs: Sequence[str] | None,
    tokenizer: Any,
    template: str,
    longest: int,
    ended: bool,
) -> tuple[list[list[int]], list[bool]]:
    """Return the tokens of each prompt, and whether its texts lost any.

    Texts that are too long lose their last tokens, the longer one of a pair first; the rest of the
    prompt stays.

    Args:
        sources: texts that replace ``{source}``.
        pairs: texts that replace ``{pair}``, or None.
        tokenizer: a fast tokenizer with an end token.
        template: the prompt.
        longest: most tokens of a prompt.
        ended: whether a prompt ends with the tokenizer's end token, as an encoder reads it. A
            decoder continues the prompt.

    Raises:
        UserError: the template alone has ``longest`` tokens or more.
    """
    filled = [*_filled(template, sources, pairs)]
    encoding = tokenizer(
        [text for text, _ in filled],
        truncation=False,
        verbose=False,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
    )
    begins = tokenizer.bos_token_id
    start = tokenizer.eos_token_id if begins is None else begins
    result, cut = [], []
    for row, (_, spans) in enumerate(filled):
        ids = encoding["input_ids"][row]
        special = encoding["special_tokens_mask"][row]
        count = len(ids)
        while not ended and count and special[count - 1] and ids[count - 1] != begins:
            count -= 1
        texts = [
            -1 if marked else _text_at(begin, spans)
            for (begin, _), marked in zip(encoding["offset_mapping"][row], special, strict=True)
        ]
        result.append(_cut(ids[:count], texts[:count], longest) or [start])
        cut.append(count > longest)
    return result, cut


def _filled(
    template: str, sources: Sequence[str], pairs: Sequence[str] | None
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield each prompt, and the start and the end of each text in it.

    The template is divided before texts are inserted: a text may contain "{source}".
    """
    parts = PLACES.split(template)
    for row, source in enumerate(sources):
        values = {SOURCE: source} if pairs is None else {SOURCE: source, PAIR: pairs[row]}
        text, spans = "", []
        for part in parts:
            value = values.get(part, part)
            if part in values:
                spans.append((len(text), len(text) + len(value)))
            text += value
        yield text, spans


def _text_at(place: int, spans: Sequence[tuple[int, int]]) -> int:
    """Return the index of the text that a character belongs to, -1 for the template's."""
    return next((at for at, (begin, end) in enumerate(spans) if begin <= place < end), -1)


def _cut(ids: list[int], texts: list[int], longest: int) -> list[int]:
    """Return the ids without the last tokens of the texts that are too many.

    Args:
        ids: tokens of a prompt.
        texts: index of the text that each token belongs to; -1 for the template's tokens.
        longest: most tokens.
    """
    surplus = len(ids) - longest
    if surplus <= 0:
        return ids
    places = [[at for at, text in enumerate(texts) if text == index] for index in (0, 1)]
    count = sum(map(len, places))
    if surplus >= count:
        raise UserError(
            f"task.prompt: has {len(ids) - count} tokens without the source; expected fewer "
            f"than task.max_length = {longest}"
        )
    for _ in range(surplus):
        max(places, key=len).pop()
    kept = {*places[0], *places[1]}
    return [token for at, token in enumerate(ids) if texts[at] < 0 or at in kept]
