"""Operators against dense matrices."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from literal import fastfood_matrix
from torch import Tensor

from fedpeft.projection import Projection, Selection, Stream, digest, operators
from fedpeft.projection.choice import operator
from fedpeft.projection.fastfood import Fastfood
from fedpeft.projection.operators import Operator

CPU = torch.device("cpu")
STREAMS = [
    Projection(1, "a/b/0", 7, 37, "normal"),
    Projection(1, "a/b/0", 37, 7, "uniform"),
    Projection(1, "a/b/0", 9, 9, "identity"),
    Selection(1, "a/b/0", 50, 11),
    Selection(1, "a/b/0", 5, 11),
    Fastfood(1, "a/b/0", 37, 7),
    Fastfood(1, "a/b/0", 64, 8),
    Fastfood(1, "a/b/0", 3, 1),
]


def written_out(stream: Stream) -> Tensor:
    """The matrix [rows, columns] in float64."""
    if isinstance(stream, Projection):
        return torch.from_numpy(stream.transposed().T.copy()).double()
    if isinstance(stream, Fastfood):
        return fastfood_matrix(stream)
    matrix = torch.zeros(stream.rows, stream.columns, dtype=torch.float64)
    for row, column in enumerate(stream.picked().tolist()):
        matrix[row, column] = 1
    return matrix / matrix.sum(0).clamp(min=1).sqrt()


@pytest.fixture(params=STREAMS, ids=repr)
def stream(request: pytest.FixtureRequest) -> Stream:
    return request.param


@pytest.fixture(params=["stored", "regenerated", "in pieces"])
def made(
    request: pytest.FixtureRequest, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> Operator:
    """The operator of a stream; small pieces are several."""
    if request.param == "in pieces":
        monkeypatch.setattr(operators, "PIECE", 16)
    mode = "stored" if request.param == "stored" else "regenerated"
    return operator(stream, CPU, torch.float64, mode)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_operator_applies_the_matrix_and_its_transpose(
    stream: Stream, made: Operator, leading: tuple[int, ...]
) -> None:
    matrix = written_out(stream)
    z = random(*leading, stream.columns).requires_grad_()
    output = made(z)
    torch.testing.assert_close(output, z @ matrix.T, rtol=0, atol=1e-10)
    cotangent = random(*leading, stream.rows)
    (gradient,) = torch.autograd.grad(output, z, cotangent)
    torch.testing.assert_close(gradient, cotangent @ matrix, rtol=0, atol=1e-10)


def test_operator_gradients_equal_finite_differences(stream: Stream, made: Operator) -> None:
    z = random(2, stream.columns).requires_grad_()
    assert torch.autograd.gradcheck(made, (z,))
    assert torch.autograd.gradgradcheck(made, (z,))


def test_regenerated_pieces_share_memory_and_stored_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "PIECE", 320)
    projection = Projection(0, "a", 20, 50, "normal")
    for mode, rooms in (("stored", 4), ("regenerated", 1)):
        pieces = [piece for _, piece in operator(projection, CPU, torch.float32, mode)._pieces()]
        assert [len(piece) for piece in pieces] == [16, 16, 16, 2]
        assert len({piece.data_ptr() for piece in pieces}) == rooms


@pytest.mark.parametrize(("rows", "columns"), [(50, 11), (3000, 40), (40, 40)])
def test_selection_preserves_lengths(rows: int, columns: int) -> None:
    """The columns in use are orthonormal, and all are if there are rows; Li et al. 2025."""
    selection = Selection(3, "x", rows, columns)
    matrix, picked = written_out(selection), np.unique(selection.picked())
    expected = torch.zeros(columns, columns, dtype=torch.float64)
    expected[picked, picked] = 1
    torch.testing.assert_close(matrix.T @ matrix, expected, rtol=0, atol=1e-12)


def test_selection_uses_all_columns_equally() -> None:
    picked = Selection(0, "x", 70_003, 7).picked()
    assert sorted(np.bincount(picked)) == [10_000] * 4 + [10_001] * 3
    # In random order: two neighbours are the same as often as two strangers.
    same = (picked[1:] == picked[:-1]).mean()
    assert abs(same - 1 / 7) < 5 * np.sqrt(6 / 49 / 70_000)


@given(st.integers(0, 300), st.integers(0, 100))
def test_words_are_a_slice_of_the_stream(start: int, count: int) -> None:
    stream = Projection(2, "x", 20, 20, "normal")
    whole = stream.words(0, 400)
    actual = stream.words(start, count)
    assert actual.dtype == np.uint16
    assert np.array_equal(actual, whole[start : start + count])


def test_parts_of_a_stream_differ() -> None:
    stream = Fastfood(0, "x", 64, 64)
    parts = {stream.words(0, 16, part).tobytes() for part in ("", "/signs", "/order", "/gains")}
    assert len(parts) == 4


def test_golden_digest_of_a_selection() -> None:
    """A client with another version of the stream must not join a federation."""
    picked = Selection(0, "uni_lora/entries/0", 2000, 64).picked()
    actual = hashlib.sha256(picked.astype("<i8").tobytes()).hexdigest()
    assert actual == "3c4c4a8fb5126fbda2454416d14b79e81dfb1ec94d9191d0abb637cbdb856b8d"


def test_golden_digest_of_a_fastfood_projection() -> None:
    projection = Fastfood(0, "said/embeddings.LayerNorm.weight", 100, 24)
    total = hashlib.sha256()
    total.update(projection.signs(0, 4).astype("<f4").tobytes())
    total.update(projection.order(0, 4).astype("<i8").tobytes())
    total.update(projection.gains(0, 4).astype("<f4").tobytes())
    assert total.hexdigest() == "96e023178f6756b174697b2fb67923ef9ce87c196c2c9b1fd31af1ca9fa8eb55"


@pytest.mark.parametrize("kind", [Selection, Fastfood])
def test_digest_changes_with_every_field(kind: type[Stream]) -> None:
    others = [(1, "a", 8, 4), (0, "b", 8, 4), (0, "a", 9, 4), (0, "a", 8, 3)]
    streams = [kind(0, "a", 8, 4), *(kind(*other) for other in others)]
    assert len({digest([stream]) for stream in streams}) == 5
    assert digest([Selection(0, "a", 8, 4)]) != digest([Fastfood(0, "a", 8, 4)])
