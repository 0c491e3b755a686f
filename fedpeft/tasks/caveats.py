"""Caveats of a score: what was cut or is not measured, counted beside the score and stated with it.

Encoding keeps an account of each text (``fedpeft.batches.cut``). The counts of the evaluated texts
are summed over clients like the statistics of the metrics. ``remarks`` puts them into words for
the run's last lines, result.json, pages, reports, model cards and predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.batches.encoded import Encoded
from fedpeft.tasks.base import TaskInfo
from fedpeft.tasks.schemes import OUTSIDE, PLAIN, scheme_of
from fedpeft.tasks.text_metrics import BLEU_ORDER, short_references

if TYPE_CHECKING:
    from fedpeft.experiment.config import Experiment

#: Counts of evaluated texts, in the order of their array.
COUNTS = ("texts_cut", "words_unread", "targets_cut", "targets_unwritable", "short_references")
#: Number of clients without a valid evaluation.
MISSING = "clients_missing"
#: Error of rounding a mean update to levels, relative to the norm of an update.
ROUNDING = "rounding"
#: Whether outputs were NaN or infinite.
NOT_FINITE = "not_finite"
NO_SCORE = "outputs are NaN or infinite, so there is no score; try engine.autocast = 'off'"
_MOST_WORDS = 100_000  # of a text
_MISSED = {
    "words_unread": "; they count as missed",
    "targets_cut": "; what is cut counts as missed",
}
_LOUD = 0.5  # rounding relative to the updates that is worth a remark


def counts_of(examples: Encoded, generated: bool = False) -> np.ndarray:
    """Return the counts of n evaluated texts, float64 ``[COUNTS]``.

    Args:
        examples: the texts.
        generated: whether texts are generated, to be compared with the targets.
    """
    cut = examples.cut.counts() if examples.cut else (0, 0, 0, 0)
    targets = [] if examples.targets is None or not generated else examples.targets.tolist()
    return np.array([*cut, short_references(targets)], np.float64)


def check_counts(counts: np.ndarray, examples: int) -> None:
    """Raise ValueError if received counts ``[COUNTS]``, all finite, are impossible."""
    words = COUNTS.index("words_unread")
    most = np.full(len(COUNTS), float(examples))
    most[words] *= _MOST_WORDS
    if (counts < 0).any() or (counts % 1).any() or (counts > most).any():
        raise ValueError(f"the counts of what was cut are impossible for {examples} examples")


def named(counts: np.ndarray) -> dict[str, float]:
    """Return the counts that are not zero by name, as whole numbers."""
    return {name: int(count) for name, count in zip(COUNTS, counts, strict=True) if count}


def remarks(
    caveats: Mapping[str, float], experiment: Experiment, info: TaskInfo, scored: int
) -> list[str]:
    """Return one sentence for each caveat of a score, and the scheme of tags.

    Args:
        caveats: counts by name, see ``COUNTS``, and ``MISSING``, ``NOT_FINITE`` and
            ``ROUNDING``.
        experiment: all settings.
        info: description of the task.
        scored: number of evaluated examples.
    """
    result = [tags_read(info)] if info.kind == "tags" else []
    result += [NO_SCORE] if caveats.get(NOT_FINITE) else []
    if missing := caveats.get(MISSING):
        result.append(f"clients whose evaluation failed, not in the score: {int(missing):,}")
    result += [
        f"{remark}{_MISSED.get(name, '')}" for name, remark in _cut(caveats, experiment, scored)
    ]
    short = int(caveats.get("short_references", 0))
    if info.metric == "bleu" and 2 * short > scored:
        result.append(
            f"shorter than {BLEU_ORDER} words: {short:,} of {scored:,} references; BLEU is 0 "
            f"without {BLEU_ORDER} words in a row, even if all are right: see chrf"
        )
    return result + rounding_remark(caveats, experiment)


def cut_remarks(caveats: Mapping[str, float], experiment: Experiment, texts: int) -> list[str]:
    """Return one line for each kind of what was cut from a number of texts."""
    return [remark for _, remark in _cut(caveats, experiment, texts)]


def _cut(
    caveats: Mapping[str, float], experiment: Experiment, texts: int
) -> Iterator[tuple[str, str]]:
    """Yield the name of each count of what was cut, and a line about it."""
    task = experiment.task
    lines = {
        "texts_cut": f"cut at task.max_length = {task.max_length} tokens: {{:,}} of {texts:,} "
        "texts",
        "words_unread": "words without a tag, because they are cut or have no token: {:,}",
        "targets_cut": f"cut at task.max_target = {task.max_target} tokens: {{:,}} of {texts:,} "
        "targets",
        "targets_unwritable": "targets that the tokenizer cannot write, so none of these can be "
        f"exact: {{:,}} of {texts:,}",
    }
    for name, line in lines.items():
        if count := caveats.get(name):
            yield name, line.format(int(count))


def rounding_remark(caveats: Mapping[str, float], experiment: Experiment) -> list[str]:
    """Return a line about the rounding of secure sums if it is large, known from round 1 on."""
    error = caveats.get(ROUNDING, 0.0)
    if error < _LOUD:
        return []
    limit = experiment.federation.max_update_norm
    advice = "ask more clients a round"
    if isinstance(limit, float) and limit:
        advice = f"lower federation.max_update_norm = {limit:g}, the range of the levels"
    return [
        f"rounding to wire.up = '{experiment.wire.up}' adds an error of {error:.2g} times the norm "
        f"of an update to the mean of a secure sum; {advice}, or use more bits"
    ]


def tags_read(info: TaskInfo) -> str:
    """Return as words how the tags of a task are read."""
    name = scheme_of(info.labels).name
    if name != PLAIN:
        return f"tags: {name}"
    if all(label.isdecimal() for label in info.labels):
        return "tags: numbers without names (task.labels names them), equal neighbors as an entity"
    if OUTSIDE not in info.labels:
        return "tags: plain, of single words"
    return "tags: plain (no scheme fits all of them), equal neighbors as an entity"
