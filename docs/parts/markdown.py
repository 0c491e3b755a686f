"""Markdown tables and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; bars and line breaks in cells are escaped."""
    lines = [_line(heads), _line(["---"] * len(heads)), *(_line(row) for row in rows)]
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(_escape(str(cell)) for cell in cells)} |"


def _escape(cell: str) -> str:
    """Escape bars outside of code, in which Markdown takes them as they are."""
    parts = cell.replace("\n", " ").split("`")
    return "`".join(
        part if index % 2 else part.replace("|", "\\|") for index, part in enumerate(parts)
    )


def block(text: str, language: str = "text") -> str:
    """Return a fenced block of code or output."""
    return f"```{language}\n{text.rstrip()}\n```"
