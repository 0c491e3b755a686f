"""Numbers are read where they lie, as numpy reads them, and nothing else is read at all."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from flwr.app import Array

from server.numbers import numbers


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", ">f4", "int64", "bool"])
@pytest.mark.parametrize("shape", [(5,), (), (0,), (2, 3)])
def test_numbers_are_those_numpy_reads(dtype: str, shape: tuple[int, ...]) -> None:
    array = Array(np.random.default_rng(0).normal(size=shape).astype(dtype))
    found = numbers(array)
    np.testing.assert_array_equal(found, array.numpy())
    assert (found.dtype, found.shape) == (np.dtype(dtype), shape)


def test_they_are_not_copied_and_cannot_be_written() -> None:
    array = Array(np.arange(5.0))
    found = numbers(array)
    assert np.shares_memory(found, np.frombuffer(array.data, "uint8"))
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def file_of(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


GOOD = file_of(np.arange(6.0))
BAD = {
    "empty": b"",
    "magic alone": GOOD[:8],
    "cut header": GOOD[:40],
    "cut": GOOD[:-1],
    "longer": GOOD + b"x",
    "version 2": file_of(np.arange(6.0), (2, 0)),
    "pickle": pickle.dumps(np.arange(6.0)),
    "objects": file_of(np.array([{}, None], dtype=object)),
    "by column": file_of(np.asfortranarray(np.ones((2, 3)))),
    "negative": GOOD.replace(b"(6,), ", b"(-6,),"),
    "no literal": GOOD.replace(b"(6,), ", b"(f()),"),
    "nothing in each": file_of(np.zeros(2, dtype="V0")),
}


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_refused_and_not_quoted(name: str) -> None:
    array = Array(dtype="float64", shape=(6,), stype="numpy.ndarray", data=BAD[name])
    with pytest.raises(ValueError, match=r"^an array ") as refused:
        numbers(array)
    assert len(str(refused.value)) < 60
    assert refused.value.__cause__ is None


def test_another_librarys_array_is_refused() -> None:
    with pytest.raises(ValueError, match="no numpy array"):
        numbers(Array(dtype="float64", shape=(6,), stype="torch.tensor", data=GOOD))
