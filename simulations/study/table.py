"""The results of a study as one tidy table: one row per finished cell and round.

``table.parquet`` and ``table.csv`` hold the same rows in the order of the study. They do not depend
on interruptions: seconds and handshakes are in ``costs.csv``. COLUMNS is the schema, preceded by
``axis.NAME``, the cell's label on each axis, and followed by ``metric.NAME`` for each metric.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.files import write_atomic
from fedpeft.runs.records import RoundLine
from simulations.measured import measured
from simulations.study.cells import Cell

if TYPE_CHECKING:
    import pandas as pd

PARQUET, CSV, COSTS = "table.parquet", "table.csv", "costs.csv"
COLUMNS = {
    "cell": "name of the cell and of its folder",
    "task": "task.name",
    "method": "method.name",
    "backbone": "backbone",
    "seed": "seed",
    "clients": "federation.clients",
    "clients_per_round": "clients asked each round",
    "partition": "partition.kind",
    "alpha": "partition.alpha; empty where the partition has none",
    "lr": "local.lr",
    "up_codec": "wire.up",
    "down_codec": "wire.down",
    "privacy": "privacy.unit",
    "target_epsilon": "privacy.epsilon; empty without privacy, or where the noise is given",
    "vector_size": "P, numbers that are trained and sent, head included",
    "head_size": "how many of them are the head's",
    "rounds": "federation.rounds; fewer were done if privacy was spent before",
    "round": "from 1",
    "last": "whether it is the cell's last round",
    "succeeded": "clients whose reply was used",
    "failed": "clients that failed",
    "late": "clients that were not waited for",
    "virtual": "virtual seconds since the start; empty without devices",
    "loss": "mean training loss; empty with privacy",
    "metric": "name of the task's metric",
    "score": "that metric after this round; empty where it was not evaluated",
    "eval_loss": "loss on the evaluation examples",
    "evaluated": "their number; empty where nothing was evaluated",
    "epsilon": "privacy spent so far; empty without",
    "up_payload": "bytes of encoded vectors from all clients, this round's training",
    "up_message": "the same as whole messages",
    "down_payload": "bytes of encoded vectors to all clients",
    "down_message": "the same as whole messages",
    "client_up_payload": "bytes of numbers that one client sends in a round",
    "start_score": "score before the first round; empty where it was not evaluated",
    "start_up_payload": "bytes of sums from all clients before the first round",
    "sent_up_payload": "up_payload of all rounds so far",
    "sent_up_message": "up_message of all rounds so far",
    "sent_down_payload": "down_payload of all rounds so far",
    "sent_down_message": "down_message of all rounds so far",
    "vector": "SHA-256 of the final task vector",
}

_MAY_BE_EMPTY = (
    "alpha", "target_epsilon", "loss", "score", "eval_loss", "evaluated", "epsilon", "virtual",
    "start_score",
)  # fmt: skip


@dataclass(frozen=True)
class Finished:
    """The results of a run: result.json and rounds.jsonl."""

    result: dict[str, Any]
    rounds: list[RoundLine]


def table_of(results: Sequence[tuple[Cell, Finished]]) -> pd.DataFrame:
    """Return the table of finished cells, see the module."""
    import pandas as pd

    rows = [row for cell, finished in results for row in rows_of(cell, finished)]
    axes = dict.fromkeys(name for row in rows for name in row if name.startswith("axis."))
    metrics = dict.fromkeys(name for row in rows for name in row if name.startswith("metric."))
    table = pd.DataFrame(rows, columns=[*axes, *COLUMNS, *metrics])
    for name in (*_MAY_BE_EMPTY, *metrics):
        table[name] = table[name].astype("float64")  # an empty column has no type
    return table


def costs_of(results: Sequence[tuple[Cell, Finished]]) -> pd.DataFrame:
    """Return seconds and handshake bytes, one row per finished cell and round."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "cell": cell.name,
                "round": line["round"],
                "seconds": line["seconds"],
                "handshake_up_message": line["bytes"]["handshake"]["up"]["message"],
                "handshake_down_message": line["bytes"]["handshake"]["down"]["message"],
            }
            for cell, finished in results
            for line in finished.rounds
        ]
    )


def write_table(folder: Path, results: Sequence[tuple[Cell, Finished]]) -> None:
    """Write the table as Parquet and CSV, and the costs, to a study's folder."""
    table, content = table_of(results), io.BytesIO()
    table.to_parquet(content, index=False)
    write_atomic(folder / PARQUET, content.getvalue())
    write_atomic(folder / CSV, table.to_csv(index=False))
    write_atomic(folder / COSTS, costs_of(results).to_csv(index=False))


def read_table(folder: Path) -> pd.DataFrame:
    """Return the table of a study's folder.

    Raises:
        UserError: there is none yet.
    """
    import pandas as pd

    path = folder / PARQUET
    if not path.exists():
        raise UserError(f"'{path}' does not exist; expected a study: `fedpeft report {folder}`")
    return pd.read_parquet(path)


def rows_of(cell: Cell, finished: Finished) -> list[dict[str, Any]]:
    """Return the rows of one cell; KeyError, TypeError or IndexError if its files are incomplete.

    If a run ended early because its privacy was spent, only result.json has its last score.
    """
    result = finished.result
    fixed: dict[str, Any] = {f"axis.{name}": label for name, label in cell.labels.items()}
    fixed |= {"cell": cell.name, **_settings(cell.experiment)}
    fixed |= {key: result[key] for key in ("vector_size", "head_size", "metric")}
    fixed["client_up_payload"] = result["bytes"]["per_client_round_up"]["payload"]
    fixed["start_score"] = (result.get("start") or {}).get("score")  # old runs have none
    begun = result["bytes"].get("start")
    fixed["start_up_payload"] = begun["up"]["payload"] if begun else 0
    rows = []
    for row in measured(finished.rounds):
        last = {"last": row["round"] == result["rounds"], "vector": None}
        rows.append(fixed | row | last)
    rows[-1]["vector"] = result["digests"]["vector"]
    if rows[-1]["score"] is None:
        metrics = {f"metric.{name}": value for name, value in (result["metrics"] or {}).items()}
        rows[-1] |= {"score": result["score"], **metrics}
    return rows


def _settings(experiment: Experiment) -> dict[str, Any]:
    federation, partition = experiment.federation, experiment.partition
    has_alpha = partition.kind in ("dirichlet", "quantity")
    return {
        "task": experiment.task.name,
        "method": experiment.method.name,
        "backbone": experiment.backbone,
        "seed": experiment.seed,
        "clients": federation.clients,
        "clients_per_round": experiment.clients_per_round,
        "partition": partition.kind,
        "alpha": partition.alpha if has_alpha else None,
        "lr": experiment.local.lr,
        "up_codec": experiment.wire.up,
        "down_codec": experiment.wire.down,
        "privacy": experiment.privacy.unit,
        "target_epsilon": experiment.privacy.epsilon or None,
        "rounds": federation.rounds,
    }
