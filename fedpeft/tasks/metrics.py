"""Metrics from statistics that can be summed over clients.

Clients return statistics of their examples. The server sums them, and the metric of the sum equals
the metric of all examples together. Undefined metrics (no examples, a single class, constant
scores) are 0.0, as in scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedpeft.batches.cut import Cut
from fedpeft.tasks import text_metrics
from fedpeft.tasks.base import Kind, TaskInfo
from fedpeft.tasks.schemes import scheme_of

#: Most examples of one client, in training or evaluation.
MAX_EXAMPLES = 10_000_000
#: Largest absolute score or label of a task of kind "score" in reported statistics.
MAX_SCORE = 1e9


def statistics(outputs: np.ndarray, labels: np.ndarray, kind: Kind) -> np.ndarray:
    """Return the sufficient statistics of classes or scores, float64.

    Args:
        outputs: logits of the C classes, shape ``[n, C]``, or predicted scores, ``[n, 1]``.
        labels: class indices or scores, shape ``[n]``.
        kind: "classes" or "score".

    Returns:
        For classes the examples of each class, the predictions of each class, and the correct
        predictions, shape ``[2 C + 1]``: all that the metrics read of the C² confusion counts.
        For a score with predictions x and labels y: n, Σx, Σy, Σx², Σy², Σxy.
    """
    if kind == "classes":
        classes, truth = outputs.shape[1], labels.astype(np.int64)
        predicted = outputs.argmax(axis=1)
        counts = [np.bincount(each, minlength=classes) for each in (truth, predicted)]
        return np.array([*counts[0], *counts[1], (truth == predicted).sum()], dtype=np.float64)
    x, y = outputs[:, 0].astype(np.float64), labels.astype(np.float64)
    return np.array([len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y])


def tag_statistics(
    outputs: np.ndarray,
    labels: np.ndarray,
    lengths: np.ndarray,
    names: Sequence[str],
    cut: Cut | None = None,
) -> np.ndarray:
    """Return the sufficient statistics of tagged words, float64.

    An entity is correct if its type and both ends are correct. Entities are those of the scheme
    that all names follow, see ``schemes``. A word that was cut counts as one with a wrong tag, and
    its entity as one that was not predicted.

    Args:
        outputs: logits of the C tags of every token of n texts, shape ``[total, C]``.
        labels: tag indices, shape ``[total]``; negative for tokens that are not evaluated.
        lengths: number of tokens of every text, shape ``[n]``.
        names: all tags of the task by index: "O", "B-PER", ...
        cut: words of the texts without a token.

    Returns:
        Texts, words, correct words, correct entities, predicted entities, labeled entities.
    """
    words, scheme = labels >= 0, scheme_of(names)
    # the first word of every text
    starts = np.append(0, np.cumsum(words))[np.append(0, np.cumsum(lengths))[:-1]]
    gold, predicted = labels[words], outputs.argmax(axis=1)[words]
    if cut and cut.words is not None and len(lengths):
        gold, predicted, starts = _with_unread(gold, predicted, starts, cut.words)
    labeled, entities = (scheme.entities(tags, starts) for tags in (gold, predicted))
    correct = (gold == predicted).sum(), len(labeled & entities)
    counts = (len(lengths), len(gold), *correct, len(entities), len(labeled))
    return np.array(counts, dtype=np.float64)


def _with_unread(
    gold: np.ndarray, predicted: np.ndarray, starts: np.ndarray, unread: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Insert the words without a token, whose prediction is -1, see ``Cut.words``."""
    listed = np.concatenate(unread)
    counts = np.array([len(words) for words in unread])
    places = np.repeat(starts, counts) + listed[:, 0]
    gold, predicted = np.insert(gold, places, listed[:, 1]), np.insert(predicted, places, -1)
    return gold, predicted, starts + np.cumsum(counts) - counts


def statistics_size(kind: Kind, classes: int) -> int:
    """Return the length of the statistics of a kind."""
    if kind == "text":
        return text_metrics.SIZE
    return 2 * classes + 1 if kind == "classes" else 6


def examples_of(stats: np.ndarray, kind: Kind) -> int:
    """Return the number of examples in (a sum of) statistics."""
    return int(stats[: len(stats) // 2].sum() if kind == "classes" else stats[0])


def check_statistics(
    stats: np.ndarray, kind: Kind, max_length: int, generates: bool = False, unread: float = 0
) -> None:
    """Raise ValueError if received statistics, all finite, are impossible.

    Args:
        stats: of one client, shape as in ``statistics_size``.
        kind: of the task.
        max_length: most words of a text, or tokens of a text to write.
        generates: whether the metric of a task of text needs generated texts.
        unread: number of words without a token, which the limit does not bound.
    """
    if kind == "text":
        text_metrics.check_text_statistics(stats, MAX_EXAMPLES, max_length, generates)
        return
    counts = stats[:1] if kind == "score" else stats
    if (counts < 0).any() or (counts % 1).any() or not counts.any():
        raise ValueError("the statistics are no counts of examples")
    examples = counts[:1] if kind == "tags" else counts
    # The largest first: the sum of huge counts would overflow.
    if examples.max() > MAX_EXAMPLES or examples_of(stats, kind) > MAX_EXAMPLES:
        raise ValueError(f"the statistics count more than {MAX_EXAMPLES} examples")
    if kind == "classes":
        _check_classes(*_by_class(stats))
    if kind == "tags":
        texts, words, right, hits, predicted, labelled = stats
        read = words - unread
        if max(right, predicted) > read or hits > min(predicted, labelled) or labelled > words:
            raise ValueError("the statistics count more than there is")
        if not texts > 0 or read > texts * max_length:
            raise ValueError(f"the statistics count more than {max_length} words in a text")
    if kind == "score":
        count, sum_x, sum_y, sum_xx, sum_yy, sum_xy = stats
        squares = np.array([sum_xx, sum_yy])
        if (squares < 0).any() or (squares > count * MAX_SCORE**2).any():
            raise ValueError(f"the statistics are of scores beyond {MAX_SCORE:g}")
        # Cauchy-Schwarz; 1e-6 for rounding, 1e-100 for squares that underflow
        largest = np.sqrt([count * sum_xx, count * sum_yy, sum_xx * sum_yy])
        if (np.abs([sum_x, sum_y, sum_xy]) > largest * (1 + 1e-6) + 1e-100).any():
            raise ValueError("the statistics are sums of no scores")


def scores(stats: np.ndarray, kind: Kind) -> dict[str, float]:
    """Return the metrics by name from (a sum of) statistics.

    Classes: accuracy, matthews (R_k of Gorodkin 2004 for more than two classes), and f1 of class 1
    for two classes. Score: pearson. Tags: f1, precision and recall of entities, and accuracy of
    words. Text: see ``text_metrics.text_scores``.
    """
    if kind == "score":
        return {"pearson": _pearson(stats)}
    if kind == "text":
        return text_metrics.text_scores(stats)
    if kind == "tags":
        _, words, right, hits, predicted, labelled = stats
        return {
            "f1": _ratio(2 * hits, predicted + labelled),
            "precision": _ratio(hits, predicted),
            "recall": _ratio(hits, labelled),
            "accuracy": _ratio(right, words),
        }
    labels, predictions, right = _by_class(stats)
    result = {
        "accuracy": _ratio(right, labels.sum()),
        "matthews": _matthews(labels, predictions, right),
    }
    if len(labels) == 2:
        # 2 TP / (2 TP + FP + FN)
        whole = labels[1] + predictions[1]
        result["f1"] = _ratio(right - labels.sum() + whole, whole)
    return result


def undefined(info: TaskInfo, labels: np.ndarray) -> str:
    """Return a line if the labels leave the task's metric 0 whatever is predicted, otherwise "".

    Args:
        info: of a task with classes or scores; for others the line is empty.
        labels: of all examples that are evaluated, shape ``[n]``.
    """
    if info.kind not in ("classes", "score") or not len(labels):
        return ""
    same = np.ptp(labels) == 0
    if info.kind == "score":
        what = f"has the score {labels[0]:g}" if same else ""
    elif info.metric == "f1":
        what = "" if (labels == 1).any() else f"is of class '{info.labels[0]}'"
    else:
        one = same and info.metric == "matthews"
        what = f"is of class '{info.labels[int(labels[0])]}'" if one else ""
    return what and (
        f"warning: every evaluation example {what}, so {info.metric} is 0 whatever is predicted"
    )


def unsummable_scores(
    kind: Kind, outputs: np.ndarray | None = None, labels: np.ndarray | None = None
) -> dict[str, float | None]:
    """Return the metrics that need all outputs and labels in one place: spearman of scores.

    Without outputs and labels their values are None.
    """
    if kind != "score":
        return {}
    if outputs is None or labels is None:
        return {"spearman": None}
    return {"spearman": spearman(outputs[:, 0], labels)}


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return Spearman's rank correlation of two arrays of shape ``[n]``."""
    from scipy.stats import spearmanr

    if len(labels) < 2 or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(spearmanr(predictions, labels).statistic)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _by_class(stats: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the examples [C] and the predictions [C] of each class, and the correct ones."""
    classes = len(stats) // 2
    return stats[:classes], stats[classes:-1], float(stats[-1])


def _check_classes(labels: np.ndarray, predictions: np.ndarray, right: float) -> None:
    """Raise ValueError if no predictions have these counts."""
    total, either = labels.sum(), labels + predictions
    if predictions.sum() != total:
        raise ValueError("the statistics count more than there is")
    # A class of more examples and predictions than there are examples has correct ones.
    if not max(0.0, (either - total).max()) <= right <= np.minimum(labels, predictions).sum():
        raise ValueError("the statistics count more than there is")
    if len(labels) == 2 and (right - total + either[1]) % 2:  # twice the correct ones of class 1
        raise ValueError("the statistics are no counts of examples")


def _matthews(labels: np.ndarray, predictions: np.ndarray, right: float) -> float:
    """Return R_k, the correlation of one-hot labels with one-hot predictions.

    Args:
        labels: examples of each class [C].
        predictions: predictions of each class [C].
        right: number of correct predictions.
    """
    total = labels.sum()
    covariance = right * total - labels @ predictions
    spread = (total**2 - labels @ labels) * (total**2 - predictions @ predictions)
    return _ratio(covariance, math.sqrt(spread))


def _pearson(stats: np.ndarray) -> float:
    count, sum_x, sum_y, sum_xx, sum_yy, sum_xy = (float(value) for value in stats)
    spread_x, spread_y = count * sum_xx - sum_x**2, count * sum_yy - sum_y**2
    # Rounding leaves a spread for constants; 1e-12 is far below that of any float32 outputs.
    if not (spread_x > 1e-12 * count * sum_xx and spread_y > 1e-12 * count * sum_yy):
        return 0.0
    value = (count * sum_xy - sum_x * sum_y) / math.sqrt(spread_x * spread_y)
    return min(1.0, max(-1.0, value))
