"""Tables and sentences on malicious clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from parts.markdown import table
from parts.results import BENCHMARKS


def case(name: str, of: str) -> dict[str, Any]:
    """Return a case of a committed benchmark."""
    text = (BENCHMARKS / f"{name}.json").read_text(encoding="utf-8")
    return dict(json.loads(text)[of])


def rows_of(report: dict[str, Any]) -> str:
    """Return the table of a benchmark's case."""
    rows = report["table"]
    return table([*rows[0]], [[str(value) for value in row.values()] for row in rows])


def clipping() -> str:
    """Return what clipping at the median costs honest clients, and saves."""
    return rows_of(case("clipping", "one of ten"))


def worst_accuracy() -> str:
    """Return the worst accuracies over attacks, and the sentences that follow from the runs."""
    report = case("attacks", "worst accuracy")
    said = [text for name, text in report["facts"].items() if name.startswith("sentence")]
    legend = report["facts"]["cells"]
    return "\n\n".join([rows_of(report), f"Cells: {legend}.", "\n".join(f"- {s}" for s in said)])


def backdoor() -> str:
    """Return accuracy and success of backdoors."""
    return rows_of(case("attacks", "backdoor"))


PARTS: dict[str, Callable[..., str]] = {
    "clipping": clipping,
    "worst_accuracy": worst_accuracy,
    "backdoor": backdoor,
}
