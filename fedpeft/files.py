"""Atomic writes of files, where a crash leaves the old content or the new, and digests of files."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from fedpeft.errors import UserError

PRIVATE, PUBLIC, PROGRAM = 0o600, 0o644, 0o700
#: Encoding of the files that users write: Windows' editors put a byte-order mark at the start.
USERS_TEXT = "utf-8-sig"


def check_folder(out: Path) -> None:
    """Raise UserError if ``--out``, a folder, is the path of something else."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out '{out}': is a file; expected a folder")


def write_atomic(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """Write ``data`` under a temporary name, fsync it, and rename it to ``path``.

    Processes that write to ``path`` at the same time wait for each other.

    Args:
        path: the file.
        data: its content; text is UTF-8.
        mode: permissions; None = the usual ones.
    """
    if isinstance(data, str):
        data = data.encode()
    temporary = path.with_name(f".{path.name}.tmp")
    with _alone(temporary) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        os.replace(temporary, path)
    sync(path.parent)


@contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file, empty, while no other process has it; a crash may have left it."""
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            if _is_at(path, file):  # otherwise the process that had it has renamed it
                file.truncate(0)
                yield file
                return


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def write_together(files: Mapping[Path, tuple[bytes, int]], replace: bool = False) -> None:
    """Write files given as path -> (content, mode); create missing folders with mode 0700.

    All contents are on disk, with their modes, before the first file gets its name.

    Raises:
        FileExistsError: a file exists and ``replace`` is False; nothing is written.
    """
    for path in files:
        if not replace and os.path.lexists(path):
            raise FileExistsError(str(path))
    temporary = {path: path.with_name(f".{path.name}.tmp") for path in files}
    try:
        for path, (content, mode) in files.items():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_new(temporary[path], content, mode)
        for path in files:
            os.replace(temporary[path], path)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
    for folder in {path.parent for path in files}:
        sync(folder)


def _write_new(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)  # left by a crash
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into, which is renamed to ``path`` at the end."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a crash
    temporary.mkdir()
    try:
        yield temporary
        for written in [*temporary.rglob("*"), temporary]:
            sync(written)
        temporary.replace(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Call fsync on a file, or on a folder for the names in it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; {} if the file is missing or holds something else."""
    try:
        return parse_object(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object of a text; {} if the text is something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def files_digest(path: Path) -> str:
    """Return the SHA-256 over the bytes of a file, or of all files in a folder."""
    return digest_of_files(sorted(path.rglob("*")) if path.is_dir() else [path])


def digest_of_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 over the bytes of files, in order; leave out what is no file.

    A file is read again if its size, its time of change or its inode differ from the last time.
    """
    total = hashlib.sha256()
    for file in paths:
        if file.is_file():
            status = file.stat()
            total.update(_file_digest(file, status.st_mtime_ns, status.st_size, status.st_ino))
    return total.hexdigest()


@lru_cache(maxsize=1024)
def _file_digest(file: Path, changed: int, size: int, inode: int) -> bytes:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").digest()


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines and fsync them."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the ``count`` files of a folder that were written last."""
    with suppress(FileNotFoundError):  # another process may remove files at the same time
        newest = sorted(folder.glob("[!.]*"), key=lambda file: -file.stat().st_mtime)
        for old in newest[count:]:
            old.unlink(missing_ok=True)
