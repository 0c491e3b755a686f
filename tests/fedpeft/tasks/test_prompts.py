"""Prompts with one or two texts, and where they are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpeft.backbones.tiny import tiny_tokenizer
from fedpeft.errors import UserError
from fedpeft.tasks.prompts import prompt_tokens

TOKENIZER: Any = tiny_tokenizer()  # encloses a text in <s> and </s>, has a token for each word


def words(ids: list[int]) -> str:
    return " ".join(TOKENIZER.convert_ids_to_tokens(ids))


def test_texts_replace_the_places_and_are_not_read_as_templates() -> None:
    ((ids,), _) = prompt_tokens(
        ["{pair} film"], ["{source}"], TOKENIZER, "{pair}: {source}", 40, True
    )
    assert ids == TOKENIZER("{source}: {pair} film")["input_ids"]
    ((ids,), _) = prompt_tokens(["film"], None, TOKENIZER, "{pair}: {source}", 40, False)
    assert ids == TOKENIZER("{pair}: film")["input_ids"][:-1]  # a decoder continues it


def test_the_longer_text_is_cut_first_and_the_template_stays() -> None:
    long, short = "good bad dull day fine great", "film was"
    for longest, expected in [
        (12, "<s> good bad dull day fine , film was . it </s>"),
        (9, "<s> good bad , film was . it </s>"),
        (8, "<s> good , film was . it </s>"),
        (7, "<s> good , film . it </s>"),
    ]:
        ((ids,), _) = prompt_tokens(
            [long], [short], TOKENIZER, "{source}, {pair}. it", longest, True
        )
        if longest == 8:  # texts of equal length: either may lose a token
            assert len(ids) == 8 and words(ids).endswith(". it </s>")
        else:
            assert words(ids) == expected
    with pytest.raises(UserError, match=r"has 5 tokens without the source; expected fewer than"):
        prompt_tokens([long], [short], TOKENIZER, "{source}, {pair}. it", 5, True)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["good", "bad", "dull"]), min_size=1, max_size=9),
    st.lists(st.sampled_from(["film", "was", "bed"]), min_size=1, max_size=9),
    st.integers(7, 24),
)
def test_cutting_keeps_beginnings_and_fills_the_room(
    first: list[str], second: list[str], longest: int
) -> None:
    """As the tokenizer's own truncation of pairs: a token of the longer text goes, one by one."""
    ((ids,), _) = prompt_tokens(
        [" ".join(first)], [" ".join(second)], TOKENIZER, "{source}, {pair}. it", longest, True
    )
    left, right = words(ids).removeprefix("<s> ").removesuffix(" . it </s>").split(" , ")
    kept = left.split(), right.split()
    assert first[: len(kept[0])] == kept[0] and second[: len(kept[1])] == kept[1]
    assert len(ids) == min(longest, len(first) + len(second) + 5)
    for own, other, whole in ((*kept, first), (*kept[::-1], second)):
        assert len(own) == len(whole) or len(own) >= len(other) - 1
