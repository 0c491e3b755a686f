"""The task vector: layout, digest, codecs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpeft.vector import Layout, decode, encode

shapes = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=5)


@given(shapes, st.integers(1, 3))
def test_unpack_undoes_pack(sizes: list[list[int]], groups: int) -> None:
    layout = Layout(tuple((f"p{i}", tuple(shape)) for i, shape in enumerate(sizes)))
    draw = np.random.default_rng(0)
    rows = [{n: draw.normal(size=s) for n, s in layout.entries} for _ in range(groups)]
    vectors = torch.from_numpy(np.stack([layout.pack(row) for row in rows]))
    assert vectors.shape == (groups, layout.size)
    for name, tensor in layout.unpack(vectors).items():
        assert np.array_equal(tensor.numpy(), np.stack([row[name] for row in rows]))


def test_pack_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Layout((("z", (3,)),)).pack({"z": np.zeros(4)})


def test_digest_tells_names_shapes_and_order() -> None:
    layouts = [
        Layout((("a", (2,)), ("b", (3,)))),
        Layout((("b", (3,)), ("a", (2,)))),
        Layout((("a", (2,)), ("c", (3,)))),
        Layout((("a", (3,)), ("b", (2,)))),
        Layout((("a", (1, 2)), ("b", (3,)))),
    ]
    assert len({layout.digest for layout in layouts}) == len(layouts)


def test_head_size_counts_the_head_only() -> None:
    layout = Layout((("z", (5,)), ("head.weight", (2, 3)), ("head.bias", (2,))))
    assert (layout.size, layout.head_size) == (13, 8)


@pytest.mark.parametrize(("codec", "bytes_each"), [("float32", 4), ("float16", 2), ("float64", 8)])
def test_codecs(codec: str, bytes_each: int) -> None:
    vector = np.random.default_rng(0).normal(size=50).astype(np.float32)
    sent = encode(vector, codec)
    assert sent.nbytes == 50 * bytes_each
    back = decode(sent, codec, 50)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, vector, rtol=1e-3 if codec == "float16" else 0)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3, np.float32), r"shape \(3,\), expected \(4,\)"),
        (np.zeros((4, 1), np.float32), "expected"),
        (np.zeros(4, np.float64), "float64, expected float32"),
        (np.array([0, np.nan, np.inf, 1], np.float32), "2 of 4 numbers are NaN or infinite"),
    ],
)
def test_decode_trusts_nothing(array: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(array, "float32", 4)
