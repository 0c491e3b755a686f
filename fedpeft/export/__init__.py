"""Export of a finished run: a model or encoder, a peft adapter, or a vector file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.export.formats import Format
from fedpeft.files import whole_folder, write_atomic

if TYPE_CHECKING:
    from fedpeft.trained import Trained

__all__ = ["Format", "check_target", "default_target", "export"]


def default_target(run: Path, kind: Format) -> Path:
    """Return the default folder of an export: in the run's folder, or beside the vector file."""
    return (run if run.is_dir() else run.parent) / f"export-{kind}"


def is_file(out: Path, kind: Format) -> bool:
    """Return whether a target is a file: a vector whose name ends in .safetensors."""
    return kind == "vector" and out.suffix == ".safetensors"


def check_target(out: Path, kind: Format) -> None:
    """Raise UserError if the target exists; an empty folder is allowed for a folder export."""
    if not is_file(out, kind) and out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        what = "folder" if out.is_dir() else "file"
        raise UserError(f"--out {out}: the {what} exists already; choose another")


# Imports are local: a target is checked before PyTorch is loaded.
def _save_hf(trained: Trained, folder: Path) -> None:
    from fedpeft.export.plain import save_plain

    save_plain(trained, folder)


def _save_peft(trained: Trained, folder: Path) -> None:
    from fedpeft.export.adapter import save_adapter

    save_adapter(trained, folder)


def _save_onnx(trained: Trained, folder: Path) -> None:
    from fedpeft.export.onnx import save_onnx

    save_onnx(trained, folder)


def _save_sentences(trained: Trained, folder: Path) -> None:
    from fedpeft.export.sentences import save_sentences

    save_sentences(trained, folder)


def _save_vector(trained: Trained, folder: Path) -> None:
    from fedpeft.vectorfile import VECTOR, vector_bytes

    (folder / VECTOR).write_bytes(vector_bytes(trained.vector, trained.about))


_FOLDERS: dict[str, Callable[[Trained, Path], None]] = {
    "hf": _save_hf,
    "peft": _save_peft,
    "onnx": _save_onnx,
    "sentence-transformers": _save_sentences,
    "vector": _save_vector,
}


def export(trained: Trained, kind: Format, out: Path) -> None:
    """Write a run in another format; an export that fails leaves nothing behind.

    Args:
        trained: the run.
        kind: see the modules ``plain``, ``adapter``, ``onnx`` and ``sentences``; ``Trained.read``
            reads "vector".
        out: the folder; for "vector" also a file, if its name ends in .safetensors.

    Raises:
        UserError: ``out`` exists or cannot be written, or the run has no such export.
    """
    from safetensors import SafetensorError

    from fedpeft.vectorfile import vector_bytes

    check_target(out, kind)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if is_file(out, kind):
            write_atomic(out, vector_bytes(trained.vector, trained.about))
            return
        with whole_folder(out) as folder:
            _FOLDERS[kind](trained.in_float32(), folder)
    except (OSError, SafetensorError) as error:  # latter: a full disk, for example
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"--out {out}: cannot be written ({reason})") from None
