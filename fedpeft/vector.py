"""The task vector: all trainable parameters of a method and its head as one flat array.

A ``Layout`` says which parameter lies where; its digest is compared at the handshake.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

HEAD = "head."  # names of the head's parameters start with this


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the parameters, in the order in which they lie in the vector."""

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Length P of the task vector."""
        return sum(prod(shape) for _, shape in self.entries)

    @property
    def head_size(self) -> int:
        """How many of the P numbers belong to the head."""
        return sum(prod(shape) for name, shape in self.entries if name.startswith(HEAD))

    @property
    def digest(self) -> str:
        """SHA-256 over names and shapes, as hexadecimal text."""
        return hashlib.sha256(json.dumps(self.entries).encode()).hexdigest()

    def named(self, name: str) -> list[str]:
        """Return the parameters meant by a name: its own, or all of the head's for "head"."""
        head = f"{name}." == HEAD
        return [own for own, _ in self.entries if own == name or (head and own.startswith(HEAD))]

    def places(self, parameters: Container[str]) -> np.ndarray:
        """Return which of the P numbers belong to one of these parameters, bool [P]."""
        return np.concatenate(
            [np.full(prod(shape), name in parameters) for name, shape in self.entries]
        )

    def without(self, parameters: Container[str]) -> Layout:
        """Return the layout of the others."""
        return Layout(tuple(entry for entry in self.entries if entry[0] not in parameters))

    def pack(self, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the task vector [P] of named arrays; names and shapes must be the layout's."""
        shapes = {name: array.shape for name, array in parameters.items()}
        if shapes != dict(self.entries):
            raise ValueError(f"parameters {shapes} do not fit the layout {dict(self.entries)}")
        return np.concatenate([parameters[name].reshape(-1) for name, _ in self.entries])

    def unpack(self, vectors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return views ``name -> [G, *shape]`` of task vectors [G, P]."""
        sizes = [prod(shape) for _, shape in self.entries]
        pieces = vectors.split(sizes, dim=1)
        return {
            name: piece.view(-1, *shape)
            for (name, shape), piece in zip(self.entries, pieces, strict=True)
        }


def encode(vector: np.ndarray, codec: str) -> np.ndarray:
    """Return a task vector [P] in the number format in which it travels."""
    return np.ascontiguousarray(vector, dtype=codec)


def decode(array: np.ndarray, codec: str, size: int, dtype: str = "float32") -> np.ndarray:
    """Return the task vector [P] of a received array in ``dtype``.

    Raises:
        ValueError: wrong length, wrong number format, or a number that is not finite.
    """
    if array.shape != (size,):
        raise ValueError(f"vector has shape {array.shape}, expected ({size},)")
    if array.dtype != np.dtype(codec):
        raise ValueError(f"vector is {array.dtype}, expected {codec}")
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise ValueError(f"{bad} of {size} numbers are NaN or infinite")
    return array.astype(dtype, copy=False)
