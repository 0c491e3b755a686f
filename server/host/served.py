"""The files of a run that may leave the server: its own plain ones, and no other."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from server.deployed import PLAIN_NAME

_SERVED = (".json", ".jsonl", ".toml", ".safetensors")  # no ledgers, locks or pictures
_CHUNK = 1 << 16  # bytes


class NotServed(Exception):
    """There is no such run or file, or none that may be given."""


def entries_of(folder: Path | int) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, symbolic links left out."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.is_symlink()]
    except FileNotFoundError:  # no run yet
        return []


def served_files(folder: int) -> dict[str, int]:
    """Return the files that are served of an open folder, with their sizes in bytes."""
    found = {}
    for entry in sorted(entries_of(folder), key=lambda each: each.name):
        if _is_served(entry.name) and entry.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):  # replaced or dropped meanwhile
                found[entry.name] = entry.stat(follow_symlinks=False).st_size
    return found


def _is_served(name: str) -> bool:
    return PLAIN_NAME.fullmatch(name) is not None and name.endswith(_SERVED)


@contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """Open a run's folder, but no link to one; files are opened relative to it.

    Raises:
        NotServed: there is none.
    """
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        raise NotServed("no such run") from None
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def opened_file(folder: int, name: str) -> Iterator[BinaryIO]:
    """Open a regular file that lies directly in an open folder and is meant to be served.

    Raises:
        NotServed: there is none.
    """
    missing = NotServed("no such file in this run")
    if not _is_served(name):
        raise missing
    try:  # not blocking: opening a named pipe would wait for its writer
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        raise missing from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise missing
    with open(handle, "rb") as file:
        yield file


def pieces(file: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """Yield ``count`` bytes of a file from an offset; fewer if it has become shorter."""
    file.seek(start)
    while count > 0 and (piece := file.read(min(_CHUNK, count))):
        count -= len(piece)
        yield piece
