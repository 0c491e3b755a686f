"""Tables and sentences on the studies of strangers and stragglers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedpeft.readable import readable_bytes
from parts.malicious import case
from parts.markdown import table
from parts.small_messages import differences, read
from simulations.report.significance import LEVEL, tested

if TYPE_CHECKING:
    import pandas as pd

HONEST = "no attack"


def strangers() -> str:
    """Return the scores of each method and codec with and without attackers, and two sentences."""
    last = read("strangers")
    last = last[last["last"]]
    scores = last.pivot_table(
        index=["axis.method", "axis.wire", "seed"],
        columns="axis.attack",
        values="score",
        sort=False,
    )
    attacks = [name for name in scores.columns if name != HONEST]
    rows = []
    for (method, wire), own in scores.groupby(level=[0, 1], sort=False):
        cells = [f"{own[HONEST].mean():.3f}"]
        for attack in attacks:
            cells += [f"{own[attack].mean():.3f}", differences(own[attack], own[HONEST])]
        rows.append([str(method), str(wire), *cells])
    heads = [head for attack in attacks for head in (attack, "points")]
    lost = scores[attacks].sub(scores[HONEST], axis=0).stack()
    said = [compared(lost, "axis.method"), compared(lost, "axis.wire")]
    listed = "\n".join(f"- {text}" for text in said)
    return "\n\n".join([table(["method", "codec up", HONEST, *heads], rows), listed])


def compared(lost: pd.Series, axis: str) -> str:
    """Return a sentence on what the attacks cost the two values of an axis.

    Args:
        lost: score under an attack minus without, by the axes.
        axis: its pairs agree in all other axes.
    """
    pairs = 100 * lost.unstack(axis)
    one, other = lost.index.unique(axis)
    by = (pairs[one] - pairs[other]).to_numpy()
    name, p = tested(by)
    how = f"{name}, p = {p:.2g}, {len(by)} pairs" if p is not None else "not tested"
    lead = f"Under attack {one} loses {-pairs[one].mean():.1f} points and {other} "
    lead += f"{-pairs[other].mean():.1f}"
    if p is None or p >= LEVEL:
        return f"{lead}: no difference that these runs can show ({how})."
    return f"{lead}: {abs(by.mean()):.1f} {'fewer' if by.mean() > 0 else 'more'} ({how})."


def stragglers() -> str:
    """Return last score, virtual time and bytes until the target for each way of waiting."""
    rows = []
    for row in case("reach", "stragglers")["table"]:
        if row["share"] != 0.95:
            continue
        reached = row["rounds"] is not None
        rows.append(
            [
                row["task"],
                row["series"],
                f"{row['last score']:.3f}",
                row["reached"],
                f"{row['rounds']:g}" if reached else "-",
                f"{row['virtual minutes']:g}" if reached else "-",
                readable_bytes(row["messages up and down"]) if reached else "-",
            ]
        )
    heads = ["clients", "waiting", "last score", "seeds at target", "rounds to target"]
    heads += ["virtual minutes", "bytes to target"]
    return table(heads, rows)


PARTS: dict[str, Callable[..., str]] = {"strangers": strangers, "stragglers": stragglers}
