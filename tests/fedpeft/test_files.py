"""Files are whole after a crash; those that belong together appear together, with their rights."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from fedpeft.files import (
    PRIVATE,
    PROGRAM,
    PUBLIC,
    keep_newest,
    read_object,
    write_atomic,
    write_together,
)


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_have_their_rights(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    modes = {"secret": PRIVATE, "public": PUBLIC, "program": PROGRAM}
    write_together({folder / name: (name.encode(), mode) for name, mode in modes.items()})
    assert {path.name: rights(path) for path in folder.iterdir()} == modes
    assert rights(folder) == 0o700
    assert (folder / "secret").read_bytes() == b"secret"


def test_a_private_file_is_private_from_its_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made 0600, under its temporary name, and no rights are taken away later."""
    made, open_file = [], os.open

    def watched(path: Path, flags: int, mode: int = 0o777) -> int:
        made.append((Path(path).name, flags & os.O_CREAT and mode))
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr(os, "chmod", pytest.fail)
    write_together({tmp_path / "key": (b"secret", PRIVATE)})
    assert made == [(".key.tmp", 0o600), (tmp_path.name, 0)]  # the folder is synced


def test_nothing_is_written_if_a_file_exists(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("kept")
    files = {tmp_path / name: (b"new", PRIVATE) for name in "abc"}
    with pytest.raises(FileExistsError, match=r"b$"):
        write_together(files)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").read_text() == "kept"
    write_together(files, replace=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        "abc", b"new"
    )
    assert {rights(path) for path in tmp_path.iterdir()} == {PRIVATE}


def test_a_dangling_link_counts_as_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        write_together({tmp_path / "key": (b"new", PRIVATE)})
    write_together({tmp_path / "key": (b"new", PRIVATE)}, replace=True)
    assert not (tmp_path / "key").is_symlink() and not (tmp_path / "elsewhere").exists()


def test_a_failure_leaves_existing_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("kept")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        write_together(
            {tmp_path / "a": (b"new", PRIVATE), tmp_path / "file" / "b": (b"new", PRIVATE)},
            replace=True,
        )
    assert (tmp_path / "a").read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "file"]


def test_leftovers_of_a_crash_are_replaced(tmp_path: Path) -> None:
    """A temporary file of another's making, or with other rights, is not written into."""
    left = tmp_path / ".key.tmp"
    left.write_text("left")
    left.chmod(0o666)
    write_together({tmp_path / "key": (b"new", PRIVATE)})
    assert rights(tmp_path / "key") == PRIVATE and [*tmp_path.iterdir()] == [tmp_path / "key"]


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    contents = [f"{number}" * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            [*threads.map(partial(write_atomic, tmp_path / "file"), contents)]
            assert (tmp_path / "file").read_text() in contents
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_a_temporary_file_of_a_crash_is_written_again(tmp_path: Path) -> None:
    (tmp_path / ".file.tmp").write_text("half a file, longer than the whole")
    write_atomic(tmp_path / "file", "whole")
    assert (tmp_path / "file").read_text() == "whole"
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_the_newest_files_are_kept(tmp_path: Path) -> None:
    for number in (2, 0, 3, 1):
        (tmp_path / f"{number}").write_text("")
        os.utime(tmp_path / f"{number}", (number, number))
    (tmp_path / ".writing.tmp").write_text("")
    keep_newest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".writing.tmp", "2", "3"]
    keep_newest(tmp_path / "none", 2)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"\xff", b"null"])
def test_a_file_without_a_json_object_reads_as_an_empty_one(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    assert read_object(tmp_path / "file") == {}
    (tmp_path / "file").write_text('{"a": 1}')
    assert read_object(tmp_path / "file") == {"a": 1}
