"""Names of codecs: which there are in each direction, and the numbers in them."""

from __future__ import annotations

import pytest

from fedpeft.wire.codecs import (
    Coder,
    check_codec,
    encoded_size,
    head_codec,
    rate_of,
    update_parts,
    update_size,
)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("eden1", 1), ("eden8", 8), ("eden0.5", 0.5), ("eden0.02", 0.02), ("eden1.0", 1),
        ("delta1", 1), ("delta0.2", 0.2), ("topk0.001", 0.001), ("topk1", 1),
        ("eden0", None), ("eden9", None), ("eden1.5", None), ("eden0.01", None), ("eden", None),
        ("eden-1", None), ("eden1e0", None), ("edenx", None), ("float32", None),
        ("eden½", None), ("eden１", None), ("delta1.5", None), ("topk0", None), ("topk2", None),
    ],
)  # fmt: skip
def test_rates(name: str, rate: float | None) -> None:
    assert rate_of(name, "eden", "delta", "topk") == rate


def test_only_the_asked_codecs_have_a_rate() -> None:
    assert rate_of("delta1", "eden", "topk") is None


def test_names_are_shortened() -> None:
    names = ("float16", "eden3", "eden0.50", "eden1.0", "topk0.010")
    short = ["float16", "eden3", "eden0.5", "eden1", "topk0.01"]
    assert [check_codec(name, "eden", "topk") for name in names] == short


@pytest.mark.parametrize(
    ("coders", "names", "words"),
    [
        (
            ("eden", "topk"),
            ("delta1", "eden9", "topk2"),
            r"eden0\.02 .*, topk0\.001 to topk1",
        ),
        (("eden", "delta"), ("topk0.1", "delta0.01", "float8", ""), r"eden8 .*delta1 to delta8"),
    ],
)
def test_other_names_are_refused(
    coders: tuple[Coder, ...], names: tuple[str, ...], words: str
) -> None:
    for name in names:
        with pytest.raises(ValueError, match=words):
            check_codec(name, *coders)


def test_sizes() -> None:
    sizes = {"float16": 200, "eden1": 4 + 13, "delta2": 4 + 25, "topk0.1": 20 + 9}
    assert {name: encoded_size(100, name) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("up", "codec"),
    [
        ("float32", "eden4"), ("float16", "eden4"), ("eden8", "eden1"), ("eden2", "eden1"),
        ("eden1", "eden1"), ("eden0.2", "eden0.2"), ("topk0.1", "topk0.1"), ("signs", "signs"),
    ],
)  # fmt: skip
def test_many_classes_get_fewer_bits(up: str, codec: str) -> None:
    assert head_codec(up, 100) == codec
    assert head_codec(up, 99) == up


def test_a_head_with_another_codec_is_a_part_of_its_own() -> None:
    apart = [(slice(0, 40), "eden4"), (slice(40, 100), "eden1")]
    assert update_parts(100, 60, "eden4", "eden1") == apart
    assert update_parts(100, 60, "eden4", "eden4") == [(slice(0, 100), "eden4")]
    assert update_parts(60, 60, "eden4", "eden1") == [(slice(0, 60), "eden1")]
    assert update_parts(40, 0, "eden4", "eden1") == [(slice(0, 40), "eden4")]
    assert update_size(100, 60, "eden4", "eden1") == (4 + 20) + (4 + 8)
