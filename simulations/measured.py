"""The measurements of a run's rounds as flat rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedpeft.runs.records import WAYS, RoundLine


def measured(lines: Sequence[RoundLine]) -> list[dict[str, Any]]:
    """Return a row for each line of rounds.jsonl; names as in ``simulations.study.table``.

    Bytes are those of training: ``up_payload`` of the round, ``sent_up_payload`` of all rounds so
    far. Values that were not measured are None.
    """
    rows = []
    sent: Counter[str] = Counter()
    for line in lines:
        traffic = {f"{way}_payload": line["bytes"][way]["payload"] for way in WAYS}
        traffic |= {f"{way}_message": line["bytes"][way]["message"] for way in WAYS}
        sent.update(traffic)
        row = {
            key: line.get(key)
            for key in ("round", "loss", "score", "eval_loss", "evaluated", "epsilon", "virtual")
        }
        row |= {f"metric.{name}": value for name, value in (line.get("metrics") or {}).items()}
        row |= {"succeeded": line["clients"], "failed": len(line["failed"])}
        row["late"] = len(line.get("late", []))
        row |= traffic | {f"sent_{key}": total for key, total in sent.items()}
        rows.append(row | {"seconds": line["seconds"]})
    return rows
