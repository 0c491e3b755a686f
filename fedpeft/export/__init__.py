"""A finished run for other programs: a plain transformers model, a peft adapter, the vector."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fedpeft.errors import UserError
from fedpeft.export.adapter import save_adapter
from fedpeft.export.plain import save_plain
from fedpeft.files import whole_folder, write_atomic
from fedpeft.trained import Trained
from fedpeft.vectorfile import vector_bytes

Format = Literal["hf", "peft", "vector"]

_FOLDERS: dict[str, Callable[[Trained, Path], None]] = {"hf": save_plain, "peft": save_adapter}


def default_target(run: Path, kind: Format) -> Path:
    """Return where an export goes if nobody says: into the run's folder, or beside the file."""
    folder = run if run.is_dir() else run.parent
    return folder / ("export-vector.safetensors" if kind == "vector" else f"export-{kind}")


def check_target(out: Path, kind: Format) -> None:
    """Raise UserError if something is in the way; an empty folder is not, where one is made."""
    if kind != "vector" and out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        what = "a folder" if out.is_dir() else "a file"
        state = "not empty" if out.is_dir() and any(out.iterdir()) else "there already"
        raise UserError(f"--out {out}: {what} that is {state}; choose another")


def export(trained: Trained, kind: Format, out: Path) -> None:
    """Write a run in another format, whole or not at all.

    Args:
        trained: the run.
        kind: "hf" and "peft" make a folder (``plain``, ``adapter``), "vector" a file
            that ``Trained.read`` takes.
        out: the folder or file.

    Raises:
        UserError: something is at ``out``, it cannot be written, or the method cannot be
            expressed in the format.
    """
    from safetensors import SafetensorError

    check_target(out, kind)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if kind == "vector":
            write_atomic(out, vector_bytes(trained.vector, trained.about))
            return
        with whole_folder(out) as folder:
            _FOLDERS[kind](trained, folder)
    except (OSError, SafetensorError) as error:  # the latter for a full disk, say
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"--out {out}: cannot be written ({reason})") from None
