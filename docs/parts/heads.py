"""Tables of the studies of heads that start from sums: intents, frozen and rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedpeft.readable import readable_bytes
from parts.markdown import table
from parts.results import STUDIES
from parts.small_messages import differences, read

if TYPE_CHECKING:
    import pandas as pd

NOW, BEFORE = "SLaSh", "SLaSh before"
METHOD, TASK = "axis.method", "axis.task"
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
    last, lines = read("frozen").query("last"), frozen_lines("frozen")
    rows = []
    for task, of in last.groupby(TASK, sort=False):
        now, before = of[of[METHOD] == NOW], of[of[METHOD] == BEFORE]
        score, start = scores_of(now), now.set_index("seed")["start_score"]
        here = lines[(lines[TASK] == task) & (lines[METHOD] == NOW)].set_index("seed")["frozen"]
        name = f"{task}{_METRICS.get(now['task'].iloc[0], '')}"
        means = [with_deviation(each) for each in (here, start, score, scores_of(before))]
        rows.append([name, *means, differences(score, here), differences(score, start)])
    heads = ["task", "frozen backbone", "start", "SLaSh", "SLaSh before"]
    return table([*heads, "points to the frozen backbone", "points to the start"], rows)


def frozen_bytes() -> str:
    """Return the bytes that a client sends for the start and until the score of before."""
    rounds = read("frozen")
    rows = []
    for task, of in rounds.groupby(TASK, sort=False):
        now, before = of[of[METHOD] == NOW], of[of[METHOD] == BEFORE]
        start, all_of_before = sent(now)[0], sent(before).iloc[-1]
        reached, until = bytes_until(now, mean_score(before).iloc[-1])
        share = "-" if until is None else f"{until / all_of_before:.2f}"
        rows.append(
            [task, readable_bytes(start), readable_bytes(all_of_before), reached, share],
        )
    heads = ["task", "start", "ten rounds of before", "its score is reached", "share of its bytes"]
    return table(heads, rows)


def bytes_until(rounds: pd.DataFrame, score: float) -> tuple[str, float | None]:
    """Return when the mean over seeds has a score, in words, and the bytes that a client sent."""
    means, sizes = mean_score(rounds), sent(rounds)
    reached = means.index[means >= score]
    if not len(reached):
        return "not in ten rounds", None
    return f"after round {reached[0]}" if reached[0] else "by the start", float(sizes[reached[0]])


def mean_score(rounds: pd.DataFrame) -> pd.Series:
    """Return the mean score over seeds by round; round 0 is the start."""
    starts = rounds[rounds["last"]].assign(round=0, score=rounds["start_score"])
    import pandas as pd

    return pd.concat([starts, rounds]).groupby("round")["score"].mean()


def sent(rounds: pd.DataFrame) -> pd.Series:
    """Return the payload that a client has sent by the end of each round, the start included."""
    import pandas as pd

    begun = rounds["start_up_payload"] / rounds["clients"]
    total = (rounds["sent_up_payload"] / rounds["clients"] + begun).groupby(rounds["round"]).mean()
    return pd.concat([pd.Series({0: begun.mean()}), total])


def rates() -> str:
    """Return the best start and the scores after three rounds of each rate, by task."""
    last = read("rates").query("last")
    scores = last.pivot_table(index=METHOD, columns=TASK, values="score", sort=False)
    starts = last.groupby(TASK, sort=False)["start_score"].first()
    rows = [["the start", *(f"{starts[task]:.3f}" for task in scores)]]
    rows += [[name, *(f"{score:.3f}" for score in own)] for name, own in scores.iterrows()]
    return table(["method and rate", *scores], rows)


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
    "frozen_bytes": frozen_bytes,
    "rates": rates,
}
