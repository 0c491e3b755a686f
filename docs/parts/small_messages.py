"""Tables of the studies of one SMS, of nested z, and of bytes until full fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.readable import readable_bytes
from parts.markdown import table
from parts.results import BENCHMARKS, STUDIES
from simulations.benchmarks.parts.codec_pairs import interval

if TYPE_CHECKING:
    import pandas as pd

HANDSHAKE = 437  # bytes up of a client in its run
SMS = 140  # bytes of payload in a round, each way


def read(name: str) -> pd.DataFrame:
    """Return all rounds of a committed study."""
    import pandas as pd

    return pd.read_parquet(STUDIES / name / "table.parquet")


def one_sms() -> str:
    """Return bytes and scores of each candidate, the smallest messages last."""
    rounds = read("sms")
    last = rounds[rounds["last"]]
    scores = last.pivot_table(
        index="axis.candidate", columns=["axis.task", "seed"], values="score", sort=False
    )
    rounds = rounds.assign(
        up=rounds["up_payload"] / rounds["succeeded"],
        down=rounds["down_payload"] / rounds["succeeded"],
        message=rounds["up_message"] / rounds["succeeded"],
    )
    rows = []
    for name, own in scores.iterrows():
        of = rounds[rounds["axis.candidate"] == name]
        up, down = of["up"].max(), of["down"].max()
        whole = of.groupby("cell")["message"].sum().max() + HANDSHAKE
        fits = "yes" if max(up, down) <= SMS else "no"
        sent = [f"{up:,.0f}", f"{down:,.0f}", fits, f"{whole:,.0f}"]
        rows.append([name, *sent, *against(own, scores.loc["SLaSh 1024, float32"])])
    heads = ["candidate", "payload up", "payload down", "one SMS", "a client sent"]
    return table([*heads, *heads_of(scores)], rows)


def nested() -> str:
    """Return the scores of each share of small clients, and what they lose."""
    last = read("nested")
    last = last[last["last"]]
    scores = last.pivot_table(
        index="axis.clients", columns=["axis.task", "seed"], values="score", sort=False
    )
    rows = []
    for name, own in scores.iterrows():
        rows.append([name, *against(own, scores.loc["all 1,024"])])
    return table(["clients hold", *heads_of(scores)], rows)


def reach() -> str:
    """Return rounds and bytes of each way of training until 95 and 99 % of full fine-tuning."""
    rows = json.loads((BENCHMARKS / "reach.json").read_text(encoding="utf-8"))["reach"]["table"]
    ways: dict[str, list[str]] = {}
    for row in rows:
        cells = ways.setdefault(row["series"], [row["series"], f"{row['last score']:.3f}"])
        cells += reached(row)
    shares = [f"{share:.0%}" for share in sorted({row["share"] for row in rows})]
    columns = [f"{share}: {text}" for share in shares for text in ("rounds", "up", "messages")]
    return table(["way of training", "last score", *columns], [*ways.values()])


def reached(row: dict[str, Any]) -> list[str]:
    """Return rounds, payload up of a client, and all messages of a way that reached a share."""
    if row["rounds"] is None:
        return ["-", "-", "-"]
    reached, seeds = row["reached"].split(" of ")
    some = "" if reached == seeds else f" ({row['reached']})"
    sizes = row["payload up per client"], row["messages up and down"]
    return [f"{row['rounds']:g}{some}", *map(readable_bytes, sizes)]


def heads_of(scores: pd.DataFrame) -> list[str]:
    """Return the heads of the columns of ``against``."""
    return [head for task in scores.columns.unique(0) for head in (task, "points")]


def against(own: pd.Series, other: pd.Series) -> list[str]:
    """Return for each task the mean score, and the difference to another series in points."""
    cells = []
    for task in own.index.unique(0):
        cells += [f"{own[task].mean():.3f}", differences(own[task], other[task])]
    return cells


def differences(own: pd.Series, other: pd.Series) -> str:
    """Return the mean difference in points with its 95 % t interval over task and seed."""
    pairs = (100 * (own - other)).dropna().to_numpy()
    if not len(pairs) or not np.any(pairs):
        return "-"
    low, high = interval(pairs)
    return f"{pairs.mean():+.1f} ({low:+.1f} to {high:+.1f})"


PARTS: dict[str, Callable[..., str]] = {"one_sms": one_sms, "nested": nested, "reach": reach}
