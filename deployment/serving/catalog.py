"""The served vectors by name; vectors come and go while requests are answered."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deployment.serving.setups import Setup, Setups
from fedpeft.backbones.loading import load_backbone
from fedpeft.errors import UserError, suggestion
from fedpeft.runs.trained import decoded, description_of, vector_file
from fedpeft.runs.vectorfile import VECTOR, read_vector

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FEW = 1000  # names compared for a suggestion: the comparison is slow


@dataclass(frozen=True, eq=False)
class Entry:
    """One served vector; a request keeps its entry even if the vector is removed meanwhile.

    Attributes:
        name: name in requests.
        vector: the task vector [P].
        setup: what it shares with others.
        digest: SHA-256 of the vector.
    """

    name: str
    vector: np.ndarray
    setup: Setup
    digest: str

    def described(self) -> dict[str, Any]:
        """Return the entry as JSON shows it."""
        return {"name": self.name, **self.setup.about, "digest": self.digest}


class Catalog:
    """Vectors by name, of one backbone.

    Args:
        setups: the backbone and what vectors share.
        most: maximum number of vectors.
    """

    def __init__(self, setups: Setups, most: int):
        self.setups, self._most = setups, most
        self._entries: dict[str, Entry] = {}
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, name: str) -> Entry:
        """Return an entry; KeyError if there is none."""
        return self._entries[name]

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._entries)

    def hint(self, name: str) -> str:
        """Return a clause with names close to an unknown one, or ""."""
        return suggestion(name, self.names()) if len(self) <= _FEW else ""

    def add(self, name: str, path: Path, source: str = "") -> tuple[Entry, Entry | None]:
        """Add a run folder's vector or a vector file; return its entry and the one it replaced.

        Args:
            name: the name; a vector of this name is replaced.
            path: run folder or file.
            source: what messages call the file; default: its path.

        Raises:
            UserError: the name or the file is invalid, the vector does not fit, or there are too
                many vectors.
        """
        check_name(name)
        file = vector_file(path)
        source = source or str(file)
        vector, about = read_vector(file)
        setup = self.setups.of(source, about)
        entry = Entry(name, decoded(source, vector, setup.parameters), setup, about["vector"])
        with self._changing:
            replaced = self._entries.get(name)
            if replaced is None and len(self._entries) >= self._most:
                raise UserError(
                    f"'{name}': {len(self._entries):,} vectors are served, the most that "
                    f"--max-vectors allows; remove others first"
                )
            self._entries[name] = entry
        return entry, replaced

    def receive(self, name: str, content: bytes) -> tuple[Entry, Entry | None]:
        """Add a vector from the bytes of its file; see ``add``."""
        check_name(name)
        with tempfile.TemporaryDirectory(prefix="fedpeft-serve-") as folder:
            path = Path(folder) / f"{name}.safetensors"
            path.write_bytes(content)
            try:
                return self.add(name, path, name)
            except UserError as error:  # some name the file
                raise UserError(str(error).replace(str(path), name)) from None

    def remove(self, name: str) -> Entry:
        """Remove a vector and return its entry; KeyError if there is none."""
        with self._changing:
            return self._entries.pop(name)


def check_name(name: str) -> None:
    """Raise UserError for a name that is not plain."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name[:100]!r} is not a valid name of a vector: expected at most 100 letters, "
            f"digits, '.', '_' and '-', beginning with a letter or digit"
        )


def sources(arguments: Iterable[str]) -> dict[str, Path]:
    """Return the vectors of a command line by name.

    Args:
        arguments: each ``PATH`` or ``NAME=PATH`` of a run folder or a vector file, or a folder of
            run folders and ``.safetensors`` files.

    Raises:
        UserError: a folder has no vectors, or two vectors have the same name.
    """
    chosen: dict[str, Path] = {}
    for argument in arguments:
        for name, path in _expanded(argument):
            check_name(name)
            if name in chosen:
                raise UserError(
                    f"'{path}' and '{chosen[name]}' have the same name; choose with NAME=PATH"
                )
            chosen[name] = path
    return chosen


def _expanded(argument: str) -> Iterator[tuple[str, Path]]:
    name, equals, rest = argument.partition("=")
    if equals and not Path(argument).exists():
        yield name, Path(rest)
        return
    path = Path(argument)
    children = sorted(path.iterdir()) if path.is_dir() else []
    parts = [child for child in children if _is_vector(child)]
    if (path / VECTOR).is_file() or not parts:
        yield _name_of(path), path  # ``add`` reports what is missing
        return
    yield from ((_name_of(part), part) for part in parts)


def _is_vector(path: Path) -> bool:
    return (path / VECTOR).is_file() or (path.suffix == ".safetensors" and path.is_file())


def _name_of(path: Path) -> str:
    path = path.resolve()
    if path.is_dir():
        return path.name
    return path.parent.name if path.name == VECTOR else path.name.removesuffix(".safetensors")


def open_catalog(first: Path, most: int) -> Catalog:
    """Return an empty catalog with the backbone, device, dtype and weights of a vector.

    Raises:
        UserError: the vector's file is invalid, or its backbone is not on this machine.
    """
    file = vector_file(first)
    experiment, _ = description_of(str(file), read_vector(file)[1])
    engine = experiment.engine
    backbone = load_backbone(
        experiment.backbone, engine.device, engine.dtype, weights=engine.weights
    )
    return Catalog(Setups(backbone, engine), most)
