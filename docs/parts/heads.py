"""Tables of the studies of heads that start from sums."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from parts.markdown import table
from parts.results import STUDIES
from parts.small_messages import differences, read

if TYPE_CHECKING:
    import pandas as pd

METHOD, TASK, SETTING = "axis.method", "axis.task", "axis.setting"
_METRICS = {"cola": ", Matthews", "mrpc": ", F1", "stsb": ", Pearson", "conll2003": ", F1"}


def intents() -> str:
    """Return the scores on Banking77 of the start and after 1, 3 and 10 rounds."""
    rounds = read("intents")
    rows = []
    for name, own in rounds.groupby(METHOD, sort=False):
        after = [scores_of(own[own["round"] == number]) for number in (1, 3, 10)]
        start = own[own["last"]].set_index("seed")["start_score"]
        gained = differences(after[-1], start) if start.mean() > 0.1 else "-"
        rows.append([name, with_deviation(start), *map(with_deviation, after), gained])
    line = frozen_lines("intents").query(f"`{METHOD}` == 'SLaSh'").set_index("seed")["frozen"]
    rows.append(["logistic regression, all data in one place", "-", "-", "-", "-", "-"])
    rows[-1][4] = with_deviation(line)
    heads = ["method", "start", "after 1 round", "after 3", "after 10", "points from start to end"]
    return table(heads, rows)


def frozen() -> str:
    """Return what training adds on each task, and the frozen backbone beside it."""
    rows = []
    for task, own in frozen_lines("frozen").groupby(TASK, sort=False):
        rows.append([f"{task}{_METRICS.get(own['task'].iloc[0], '')}", *added(own)])
    return table(["task", *_heads("SLaSh, ten rounds")], rows)


def around() -> str:
    """Return the same for other numbers of clients, uneven ones, and another backbone."""
    rows = []
    for (setting, task), own in frozen_lines("around").groupby([SETTING, TASK], sort=False):
        rows.append([setting, task, *added(own)])
    return table(["setting", "task", *_heads("SLaSh, five rounds")], rows)


def slower() -> str:
    """Return the scores on STS-B with the earlier rate of the head and with the present one."""
    old = read("around").query(f"last and `{TASK}` == 'STS-B'")
    new = read("slower").query("last")
    rows = []
    for setting, own in new.groupby(SETTING, sort=False):
        before = old[old[SETTING] == setting].set_index("seed")
        after = own.set_index("seed")
        start, was, now = before["start_score"], before["score"], after["score"]
        means = map(with_deviation, (start, was, now))
        rows.append([setting, *means, differences(now, was), differences(now, start)])
    heads = ["setting", "start", "`head.lr = 0.002`", "0.0001"]
    return table([*heads, "points gained", "points to the start"], rows)


def scores() -> str:
    """Return the scores of the search for the head's rate, by setting and rate."""
    rounds = read("scores").query("last")
    by_cell = rounds.set_index([SETTING, "axis.rate"])["score"]
    settings, rates = (rounds[axis].unique() for axis in (SETTING, "axis.rate"))
    rows = [[each, *(f"{by_cell[each, rate]:.3f}" for rate in rates)] for each in settings]
    return table(["setting", *rates], rows)


def added(cells: pd.DataFrame) -> list[str]:
    """Return the frozen line, the start, the score and both differences, over the seeds."""
    by_seed = cells.set_index("seed")
    score, start, here = (by_seed[name] for name in ("score", "start_score", "frozen"))
    means = map(with_deviation, (here, start, score))
    return [*means, differences(score, here), differences(score, start)]


def _heads(name: str) -> list[str]:
    ends = ["points to the frozen backbone", "points to the start"]
    return ["frozen backbone", "start", name, *ends]


def before() -> str:
    """Return when SLaSh reaches what a random head learns in ten rounds, and its share of bytes."""
    old = read("before").query("last").set_index(TASK)
    rounds = read("frozen").query("seed == 0 and (last or score == score)")
    rows, shares = [], []
    for task, own in rounds.groupby(TASK, sort=False):
        first, target = own.iloc[0], old.loc[task]
        steps = [("start", first["start_score"], first["start_up_payload"])]
        for _, row in own.sort_values("round").iterrows():
            sent = row["start_up_payload"] + row["sent_up_payload"]
            steps.append((f"round {row['round']}", row["score"], sent))
        reached = next((step for step in steps if step[1] >= target["score"]), None)
        shares.append(reached[2] / target["sent_up_payload"] if reached else float("inf"))
        said = [reached[0], f"{shares[-1]:.2f}"] if reached else ["not reached", "-"]
        rows.append(
            [task, f"{target['score']:.3f}", *(f"{score:.3f}" for _, score, _ in steps), *said]
        )
    rows.append(["median", "", "", "", "", "", f"{statistics.median(shares):.2f}"])
    heads = [
        "task",
        "before, ten rounds",
        "start",
        "SLaSh, five rounds",
        "ten rounds",
        "reached at",
    ]
    return table([*heads, "share of the bytes"], rows)


def rates() -> str:
    """Return the scores of the start and after one and three rounds at each rate, by task."""
    rounds = read("rates")
    tasks, methods = (rounds[axis].unique() for axis in (TASK, METHOD))
    by_round = rounds.set_index([METHOD, TASK, "round"])

    def scores(method: str, task: str) -> str:
        first, last = (by_round.loc[(method, task, number)] for number in (1, 3))
        return ", ".join(
            f"{each:.3f}" for each in (first["start_score"], first["score"], last["score"])
        )

    rows = [[method, *(scores(method, task) for task in tasks)] for method in methods]
    return table(["method and rate", *tasks], rows)


def frozen_lines(name: str) -> pd.DataFrame:
    """Return each cell of a study with the better line of its frozen backbone, ``frozen``."""
    import pandas as pd

    lines = pd.read_csv(STUDIES / name / "frozen.csv").groupby("cell")["score"].max()
    return read(name).query("last").merge(lines.rename("frozen"), on="cell")


def scores_of(rounds: pd.DataFrame) -> pd.Series:
    """Return the scores by seed."""
    return rounds.set_index("seed")["score"]


def with_deviation(scores: pd.Series) -> str:
    """Return mean and standard deviation over seeds."""
    return f"{scores.mean():.3f} ({scores.std():.3f})"


PARTS: dict[str, Callable[..., str]] = {
    "intents": intents,
    "frozen": frozen,
    "around": around,
    "slower": slower,
    "scores": scores,
    "before": before,
    "rates": rates,
}
