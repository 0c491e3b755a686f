"""Tables of client-level privacy: turns against secret samples, and noise of the clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from parts.markdown import table
from parts.results import STUDIES
from parts.small_messages import differences, read

if TYPE_CHECKING:
    import pandas as pd

SAMPLES, TRUSTED = "Poisson", "trusted server"


def turns() -> str:
    """Return the scores of each mechanism at each epsilon, and the differences to Poisson."""
    scores = last_scores("turns", ["axis.epsilon", "axis.mechanism"])
    rates = chosen("turns")
    rows = []
    for epsilon, mechanism in sorted(scores.index, key=lambda key: float(key[0])):
        own, samples = scores.loc[(epsilon, mechanism)], scores.loc[(epsilon, SAMPLES)]
        rate = rates[(str(epsilon), mechanism)]
        mean = f"{own.mean():.3f} ({own.std():.3f})"
        rows.append([str(epsilon), mechanism, f"{rate:g}", mean, differences(own, samples)])
    heads = ["epsilon", "mechanism", "server's rate", "accuracy", "points to Poisson"]
    return table(heads, rows)


def chosen(name: str) -> dict[tuple[str, ...], float]:
    """Return the server's learning rate that a study's search chose, by epsilon and mechanism."""
    best = json.loads((STUDIES / name / "best.json").read_text(encoding="utf-8"))
    return {
        (row["axes"]["epsilon"], row["axes"]["mechanism"]): row["values"]["federation.server_lr"]
        for row in best
    }


def secure_noise() -> str:
    """Return score and bytes with each noise, and the difference to the trusted server's."""
    scores = last_scores("secure-noise", ["axis.noise"])
    sent = read("secure-noise").groupby("axis.noise")["client_up_payload"].max()
    rows = []
    for name, own in scores.iterrows():
        mean = f"{own.mean():.3f} ({own.std():.3f})"
        points = differences(own, scores.loc[TRUSTED])
        rows.append([name, f"{sent[name]:,.0f}", mean, points])
    return table(["noise", "payload up, bytes", "accuracy", "points to the trusted server"], rows)


def last_scores(name: str, axes: list[str]) -> pd.DataFrame:
    """Return the last score of each cell of a study: a row for each series, a column for each seed."""
    rounds = read(name)
    last = rounds[rounds["last"]]
    return last.pivot_table(index=axes, columns="seed", values="score", sort=False)


PARTS: dict[str, Callable[..., str]] = {"turns": turns, "secure_noise": secure_noise}
