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

#: Place of a label in the picture where the one above the point would cover another: shift in
#: points, alignment.
_PLACES = {
    "SLaSh 256": ((6, -3), "left"),
    "JR-WARP 1024": ((6, -3), "left"),
    "SLaSh max": ((6, -3), "left"),
    "Houlsby m=1": ((6, -8), "left"),
    "LoRA r=8": ((8, -5), "left"),
}


def study(name: str) -> pd.DataFrame:
    """Return the last evaluated round of each cell of a committed study."""
    import pandas as pd

    from simulations.report.summary import finals, labelled

    return finals(labelled(pd.read_parquet(STUDIES / name / "table.parquet")))


def communication() -> str:
    """Return score and bytes of each method of the communication study."""
    from simulations.report.summary import PANEL, SENT, SERIES, over_seeds

    last = study("communication-small")
    scores = over_seeds(last).set_index([SERIES, PANEL])
    sent = last.groupby(SERIES)[SENT].mean().sort_values(kind="stable")
    size = last.groupby(SERIES)["vector_size"].max()
    rows = []
    for name in sent.index:
        cells = [scores.loc[(name, task)] for task in TASKS]
        written = [f"{cell['mean']:.3f} ({cell['deviation']:.3f})" for cell in cells]
        rows.append([name, f"{size[name]:,}", readable(sent[name]), *written])
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
    """Draw the mean score of the communication study's tasks against the bytes a client sent."""
    import matplotlib.pyplot as plt

    from simulations.report.summary import PANEL, SENT, SERIES, front, over_seeds

    last = study("communication-small")
    means = over_seeds(last).pivot(index=SERIES, columns=PANEL, values="mean").mean(axis=1)
    points = last.groupby(SERIES)[SENT].mean().to_frame(SENT).assign(mean=means).sort_values(SENT)
    best = points[front(points)]
    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    axes.step(best[SENT], best["mean"], where="post", color="#9fa8da", zorder=1)
    on_front = points.index.isin(best.index)
    colors = ["#303f9f" if on else "#9e9e9e" for on in on_front]
    axes.scatter(points[SENT], points["mean"], color=colors, zorder=2)
    for name, row in points.iterrows():
        shift, alignment = _PLACES.get(str(name), ((0, 6), "center"))
        axes.annotate(
            str(name),
            (row[SENT], row["mean"]),
            xytext=shift,
            textcoords="offset points",
            ha=alignment,
            fontsize=8,
        )
    axes.set(xscale="log", xlabel="bytes a client sent in the whole run", ylabel="mean score")
    axes.set_title(
        "Mean score of SST-2, MRPC, STS-B and QNLI (MiniLM, 10 clients, 3 seeds)", size=9
    )
    axes.xaxis.set_major_formatter(lambda size, _: readable(size))
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.08, y=0.1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with plt.rc_context({"svg.hashsalt": "fedpeft", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


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
