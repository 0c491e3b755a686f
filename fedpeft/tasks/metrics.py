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
from fedpeft.tasks.base import Kind
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
        For classes the confusion counts, label by prediction, flattened to shape ``[C * C]``.
        For a score with predictions x and labels y: n, Σx, Σy, Σx², Σy², Σxy.
    """
    if kind == "classes":
        classes = outputs.shape[1]
        cells = labels.astype(np.int64) * classes + outputs.argmax(axis=1)
        return np.bincount(cells, minlength=classes * classes).astype(np.float64)
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
    return classes**2 if kind == "classes" else 6


def examples_of(stats: np.ndarray, kind: Kind) -> int:
    """Return the number of examples in (a sum of) statistics."""
    return int(stats.sum() if kind == "classes" else stats[0])


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
    if examples.max() > MAX_EXAMPLES or examples.sum() > MAX_EXAMPLES:
        raise ValueError(f"the statistics count more than {MAX_EXAMPLES} examples")
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
    classes = math.isqrt(len(stats))
    confusion = stats.reshape(classes, classes)  # [label, prediction]
    result = {
        "accuracy": _ratio(np.trace(confusion), confusion.sum()),
        "matthews": _matthews(confusion),
    }
    if classes == 2:
        # 2 TP / (2 TP + FP + FN)
        hits = 2 * confusion[1, 1]
        result["f1"] = _ratio(hits, hits + confusion[0, 1] + confusion[1, 0])
    return result


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


def _matthews(confusion: np.ndarray) -> float:
    """Return R_k, the correlation of one-hot labels with one-hot predictions."""
    total = confusion.sum()
    labels, predictions = confusion.sum(axis=1), confusion.sum(axis=0)
    covariance = np.trace(confusion) * total - labels @ predictions
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
