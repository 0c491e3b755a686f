"""What the rounds of a run measured, as flat rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def measured(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each line of rounds.jsonl; names as in ``simulations.study.table``.

    Bytes are those of training: ``up_payload`` of the round, ``sent_up_payload`` of all so far.
    None stands where nothing was measured.
    """
    rows = []
    sent = dict.fromkeys(("up_payload", "up_message", "down_payload", "down_message"), 0)
    for line in lines:
        traffic = {key: line["bytes"][key.split("_")[0]][key.split("_")[1]] for key in sent}
        sent = {key: total + traffic[key] for key, total in sent.items()}
        row = {
            key: line.get(key)
            for key in ("round", "loss", "score", "eval_loss", "evaluated", "epsilon")
        }
        row |= {f"metric.{name}": value for name, value in (line.get("metrics") or {}).items()}
        row |= {"succeeded": line["clients"], "failed": len(line["failed"])}
        row |= traffic | {f"sent_{key}": total for key, total in sent.items()}
        rows.append(row | {"seconds": line["seconds"]})
    return rows
