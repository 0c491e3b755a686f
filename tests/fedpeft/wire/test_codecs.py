"""Names of codecs: which there are in each direction, and the numbers in them."""

from __future__ import annotations

import pytest

from fedpeft.wire.codecs import Coder, check_codec, encoded_size, rate_of


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
