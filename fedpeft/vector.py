"""The task vector: all trainable parameters of a method and its head as one flat array.

A ``Layout`` defines the order of the parameters; the handshake compares its digest.
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
    """Names and shapes of the parameters, in their order in the vector."""

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def size(self) -> int:
        """Length P of the task vector."""
        return sum(prod(shape) for _, shape in self.entries)

    @property
    def head_size(self) -> int:
        """Number of the head's numbers among the P."""
        return sum(prod(shape) for name, shape in self.entries if name.startswith(HEAD))

    @property
    def digest(self) -> str:
        """SHA-256 over names and shapes, as hexadecimal text."""
        return hashlib.sha256(json.dumps(self.entries).encode()).hexdigest()

    def named(self, name: str) -> list[str]:
        """Return the parameter of this name, if it exists; for "head", all of the head's."""
        head = f"{name}." == HEAD
        names = [entry for entry, _ in self.entries]
        return [entry for entry in names if entry == name or (head and entry.startswith(HEAD))]

    def places(self, parameters: Container[str]) -> np.ndarray:
        """Return a mask of the numbers of these parameters, bool [P]."""
        return np.concatenate(
            [np.full(prod(shape), name in parameters) for name, shape in self.entries]
        )

    def without(self, parameters: Container[str]) -> Layout:
        """Return the layout of the other parameters."""
        return Layout(tuple(entry for entry in self.entries if entry[0] not in parameters))

    def pack(self, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the task vector [P] of named arrays.

        Raises:
            ValueError: names or shapes differ from the layout's.
        """
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
