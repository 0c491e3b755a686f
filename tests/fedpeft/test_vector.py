"""The layout of the task vector, and its digest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpeft.vector import Layout

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
