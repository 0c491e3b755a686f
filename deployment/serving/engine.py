"""Predictions for texts of different vectors, in as few passes through the backbone as possible.

Texts of one family of vectors share a pass: each text is a group of its own (G = N, one row a
group), so its vector's modifications change its hidden states only. Heads differ in their number of
outputs; the texts of a pass are grouped by it for the last, small product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from deployment.serving.catalog import Entry
from deployment.serving.realised import RealisedRows
from deployment.serving.setups import Family, Setups
from fedpeft.batches.batch import Batch, collate
from fedpeft.batches.encoded import Encoded, offsets_of
from fedpeft.batches.passes import cut_by_length
from fedpeft.errors import RunFailed
from fedpeft.heads.base import read_texts
from fedpeft.runs.predicting import Prediction, predictions_of
from fedpeft.tasks import Examples
from fedpeft.tasks.base import Text, tag_column
from fedpeft.tasks.encoding import encode

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, eq=False)
class Item:
    """A text, or a pair of texts, for one vector; for tags ``text`` is a list of words."""

    entry: Entry
    text: Text
    text_pair: str | None = None


Answer = Prediction | RunFailed


class Engine:
    """Answers items of any vectors of one backbone.

    Args:
        setups: the backbone.
        cache: maximum bytes of realised vectors kept.
        most: maximum number of texts in a pass.
    """

    def __init__(self, setups: Setups, cache: int, most: int):
        self._setups, self._most = setups, most
        self.rows = RealisedRows(cache)

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        """Return the prediction of each item, or an error for outputs that are not finite."""
        with self._setups.using, torch.inference_mode():
            texts = [self._encode(items, group) for group in _grouped(items, _reading)]
            outputs: dict[int, np.ndarray] = {}
            for alike in _grouped(texts, lambda part: part[1].apart):
                parts = [texts[place] for place in alike]
                order = np.concatenate([group for group, _ in parts])
                outputs |= self._outputs(items, order, _joined([encoded for _, encoded in parts]))
        answers: dict[int, Answer] = {}
        for group, encoded in texts:
            for row, item in enumerate(group):
                text = encoded.select(np.array([row]))
                answers[item] = _answer(items[item], outputs[item], text)
        return [answers[item] for item in range(len(items))]

    def _encode(self, items: Sequence[Item], group: np.ndarray) -> tuple[np.ndarray, Encoded]:
        """Return a group of items of one reading, and their texts tokenized."""
        chosen = [items[i] for i in group]
        reads, max_length, pair, apart = chosen[0].entry.setup.reading
        texts = [item.text for item in chosen]
        pairs = [str(item.text_pair) for item in chosen] if pair else None
        labels = np.zeros(len(chosen))
        if reads == "tags":
            labels = tag_column(range(len(text)) for text in texts)
        examples = Examples(texts, pairs, labels)
        tokenizer = self._setups.backbone.tokenizer
        return group, encode(examples, tokenizer, reads, max_length, apart)

    def _outputs(
        self, items: Sequence[Item], order: np.ndarray, texts: Encoded
    ) -> dict[int, np.ndarray]:
        """Return the outputs of each item, [C], or for tags [T, C].

        Args:
            items: all items.
            order: item of each text.
            texts: all texts.
        """
        outputs: dict[int, np.ndarray] = {}
        entries = [items[i].entry for i in order]
        for family_rows in _grouped(entries, lambda entry: entry.setup.family):
            family = entries[family_rows[0]].setup.family
            own = [entries[row] for row in family_rows]
            realised = dict(zip(own, self.rows.of(own), strict=True))  # one product for all passes
            for rows in self._passes(family, texts.padded, family_rows):
                chosen = [entries[row] for row in rows]
                parts = self._pass(family, chosen, realised, texts, rows)
                outputs |= zip(order[rows].tolist(), parts, strict=True)
        return outputs

    def _passes(self, family: Family, lengths: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        """Return the rows of each pass: texts of similar length together."""
        rows = rows[np.argsort(-lengths[rows], kind="stable")]
        cuts = cut_by_length([lengths[rows]], family.costs.per_pass, self._most)
        return [rows[cut] for cut in cuts]

    def _pass(
        self,
        family: Family,
        entries: Sequence[Entry],
        realised: Mapping[Entry, Tensor],
        texts: Encoded,
        rows: np.ndarray,
    ) -> list[np.ndarray]:
        """Return the outputs of some texts: [C] each, or for tags [T, C]."""
        backbone = self._setups.backbone
        batch = collate(
            [texts], [rows], backbone.tokenizer.pad_token_id, backbone.device, self._setups.dtype
        )
        same = all(entry is entries[0] for entry in entries)
        kept = [realised[entry] for entry in (entries[:1] if same else entries)]
        changes = torch.stack([row[: family.size] for row in kept])  # [G, M]
        states, batch = family.encoder.run(family.modifications(changes), batch)
        heads = [row[family.size :] for row in kept] * (len(entries) if same else 1)
        return _read(family, entries, heads, states.to(self._setups.dtype), batch)


def _read(
    family: Family, entries: Sequence[Entry], heads: Sequence[Tensor], states: Tensor, batch: Batch
) -> list[np.ndarray]:
    """Return the outputs of each text from the last hidden states [N, k + T', width]."""
    tokens = batch.input_ids.shape[1]
    offset = family.method.read_offset(states.shape[1] - tokens)
    read = read_texts(states, batch, offset)
    lengths = batch.attention_mask[:, -tokens:].sum(1).tolist()
    outputs: dict[int, np.ndarray] = {}
    for rows in _grouped(entries, _head_form):
        first, places = entries[rows[0]], torch.from_numpy(rows).to(states.device)
        tags, classes = first.setup.info.kind == "tags", _classes(first)
        head = torch.stack([heads[row] for row in rows])  # [n, C * width + C]
        weight, bias = head.split([head.shape[1] - classes, classes], dim=1)
        if tags:
            source = states[places, -tokens:]
        else:
            source = first.setup.head.combined(read)[places][:, None]  # [n, 1, width]
        scores = source @ weight.unflatten(1, (classes, -1)).transpose(1, 2) + bias[:, None]
        for row, score in zip(rows.tolist(), scores.double().cpu().numpy(), strict=True):
            outputs[row] = score[: lengths[row]] if tags else score[0]
    return [outputs[row] for row in range(len(entries))]


def _classes(entry: Entry) -> int:
    return entry.setup.head.classes


def _head_form(entry: Entry) -> tuple[bool, int, bool, bool]:
    head = entry.setup.head
    return head.kind == "tags", _classes(entry), head.unit, head.apart


def _reading(item: Item) -> tuple[str, int, bool, bool]:
    return item.entry.setup.reading


def _grouped(values: Sequence[ValueT], key: Callable[[ValueT], Hashable]) -> Iterator[np.ndarray]:
    """Yield the places of values with equal keys, int64 [n] each."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, value in enumerate(values):
        places[key(value)].append(place)
    for group in places.values():
        yield np.array(group)


def _joined(parts: Sequence[Encoded]) -> Encoded:
    """Return the texts of all parts, with 0 for their labels."""
    lengths = np.concatenate([part.lengths for part in parts])
    return Encoded(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.segments for part in parts]),
        offsets_of(lengths),
        np.concatenate([part.read for part in parts]),
        np.zeros(len(lengths), np.int64),
        firsts=np.concatenate([part.firsts for part in parts]) if parts[0].apart > 1 else None,
    )


def _answer(item: Item, outputs: np.ndarray, text: Encoded) -> Answer:
    """Return the prediction of one text."""
    if not np.isfinite(outputs).all():
        return RunFailed(f"vector '{item.entry.name}': an output is not finite")
    info = item.entry.setup.info
    tags = info.kind == "tags"
    words = [len(item.text)] if tags else []
    matrix = outputs if tags else outputs[None]
    return predictions_of(info.kind, info.labels, matrix, text, words)[0]
