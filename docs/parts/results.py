"""Result pages made from the committed results of studies and benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from parts.markdown import table

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "simulations" / "studies" / "results"
BENCHMARKS = ROOT / "simulations" / "benchmarks" / "results"
TASKS = {"SST-2": "SST-2", "MRPC": "MRPC, F1", "STS-B": "STS-B, Pearson", "QNLI": "QNLI"}


def study(name: str) -> pd.DataFrame:
    """Return the last evaluated round of each cell of a committed study."""
    import pandas as pd

    from simulations.report.summary import finals, labelled

    return finals(labelled(pd.read_parquet(STUDIES / name / "table.parquet")))


def communication() -> str:
    """Return score and bytes of each method of the communication study, and of its start."""
    from parts.heads import frozen_lines, with_deviation
    from simulations.report.summary import PANEL, SENT, SERIES

    last = study("communication-small")
    sent = last.groupby(SERIES)[SENT].mean().sort_values(kind="stable")
    lines = frozen_lines("communication-small")
    here = [with_deviation(lines[lines["axis.task"] == task]["frozen"]) for task in TASKS]
    rows = [["frozen backbone, scikit-learn, all texts in one place", "-", "-", *here]]
    for name in sent.index:
        own = last[last[SERIES] == name]
        sums = own["start_up_payload"].sum() / own["clients"].sum()
        by_task = [own[own[PANEL] == task] for task in TASKS]
        begun = [with_deviation(cells["start_score"]) for cells in by_task]
        ended = [with_deviation(cells["score"]) for cells in by_task]
        rows.append([f"start of {name}", "-", readable(sums), *begun])
        rows.append([name, f"{own['vector_size'].max():,}", readable(sent[name]), *ended])
    return table(["method", "numbers a round", "a client sent", *TASKS.values()], rows)


def readable(size: float) -> str:
    """Return a number of bytes as KB or MB."""
    if size < 1e6:
        return f"{size / 1e3:.0f} KB"
    return f"{size / 1e6:.{1 if size < 1e8 else 0}f} MB"


def communication_front() -> str:
    """Return the methods of the communication study that no other one beats in bytes and score."""
    from simulations.report.summary import PANEL, SENT, SERIES, front, over_seeds

    last = study("communication-small")
    means = over_seeds(last).pivot(index=SERIES, columns=PANEL, values="mean").mean(axis=1)
    points = last.groupby(SERIES)[SENT].mean().to_frame(SENT).assign(mean=means)
    best = points[front(points)].sort_values(SENT)
    rows = [[name, readable(row[SENT]), f"{row['mean']:.3f}"] for name, row in best.iterrows()]
    return table(["method", "a client sent", "mean of the four scores"], rows)


def stands_out() -> str:
    """Return the pairs of methods whose difference stands out from the seeds."""
    from simulations.report.significance import compare_all

    pairs = [pair for pair in compare_all(study("communication-small")) if pair.stands_out]
    rows = []
    for pair in sorted(pairs, key=lambda pair: -abs(pair.difference)):
        better, worse = (pair.one, pair.other) if pair.difference > 0 else (pair.other, pair.one)
        rows.append([better, worse, f"{abs(pair.difference):.3f}", f"{pair.holm:.3f}"])
    return table(["higher", "lower", "mean difference", "p (Holm)"], rows)


def picture(path: Path) -> None:
    """Draw the mean score of the communication study's tasks against the bytes a client sent.

    Each method has a line from its start to its end; the frozen backbone is a level.
    """
    import matplotlib.pyplot as plt

    from simulations.report.summary import SENT

    ends = means_against_bytes("score", SENT)
    starts = means_against_bytes("start_score", "start_sent")
    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    axes.axhline(frozen_mean(), color="#9e9e9e", linestyle=":", linewidth=1)
    axes.annotate(
        "frozen backbone, scikit-learn, all texts in one place",
        (1, frozen_mean()),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="#616161",
    )
    for name, row in ends.iterrows():
        begin = starts.loc[name]
        path_of = [begin["sent"], row["sent"]], [begin["mean"], row["mean"]]
        axes.plot(*path_of, color="#9fa8da", linewidth=1, zorder=1)
        axes.scatter(begin["sent"], begin["mean"], color="white", edgecolor="#303f9f", zorder=2)
        axes.scatter(row["sent"], row["mean"], color="#303f9f", zorder=2)
        axes.annotate(
            str(name),
            (row["sent"], row["mean"]),
            xytext=(6, -3),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set(
        xscale="log",
        xlabel="bytes a client sent: sums of the start (rings), and ten rounds (dots)",
        ylabel="mean score",
    )
    axes.set_title(
        "Mean score of SST-2, MRPC, STS-B and QNLI (MiniLM, 10 clients, 3 seeds)", size=9
    )
    axes.xaxis.set_major_formatter(lambda size, _: readable(size))
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.15, y=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": "fedpeft", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def means_against_bytes(score: str, sent: str) -> pd.DataFrame:
    """Return the mean over tasks of a column of the communication study, and the bytes sent."""
    from simulations.report.summary import PANEL, SERIES

    last = study("communication-small")
    last = last.assign(start_sent=last["start_up_payload"] / last["clients"])
    of_tasks = last.groupby([SERIES, PANEL])[[score, sent]].mean()
    means = of_tasks.groupby(SERIES).mean()
    return means.rename(columns={score: "mean", sent: "sent"}).sort_values("sent")


def frozen_mean() -> float:
    """Return the mean over the communication study's tasks of the frozen backbone's score."""
    from parts.heads import frozen_lines

    lines = frozen_lines("communication-small")
    return float(lines.groupby("axis.task")["frozen"].mean().mean())


def record() -> str:
    """Return the mean score of each ten rounds of the full-size run."""
    import pandas as pd

    rounds = pd.read_parquet(STUDIES / "record" / "table.parquet")
    rows = []
    for first in range(1, int(rounds["round"].max()) + 1, 10):
        chosen = rounds[rounds["round"].between(first, first + 9)]
        score, sent = chosen["score"], chosen["sent_up_payload"].max()
        span = f"{score.min():.1%} to {score.max():.1%}"
        rows.append([f"{first} to {first + 9}", f"{score.mean():.1%}", span, readable(sent)])
    return table(["rounds", "mean accuracy", "range", "all clients have sent"], rows)


def benchmark(name: str) -> str:
    """Return a committed benchmark's page, its headings one level lower."""
    text = (BENCHMARKS / f"{name}.md").read_text(encoding="utf-8")
    return re.sub(r"^#", "##", text, flags=re.M).rstrip()


def all_benchmarks() -> str:
    """Return all committed benchmarks that have no page of their own."""
    names = sorted(path.stem for path in BENCHMARKS.glob("*.md"))
    own = (
        *("attacks", "bits", "clipping", "crowd", "d90"),
        *("methods", "private_scores", "robust_prefix"),
    )
    return "\n\n".join(benchmark(name) for name in names if name not in own)


PARTS: dict[str, Callable[..., str]] = {
    "communication": communication,
    "communication_front": communication_front,
    "stands_out": stands_out,
    "record": record,
    "benchmark": benchmark,
    "all_benchmarks": all_benchmarks,
}
