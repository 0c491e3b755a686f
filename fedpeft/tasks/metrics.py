"""Metrics from statistics that can be summed over clients.

A client returns the statistics of its examples, the server adds them up, and the metric of the
sum is the metric of all examples together. A metric that is undefined (no examples, one class
only, constant scores) is 0.0, as in scikit-learn.
"""

from __future__ import annotations

import math

import numpy as np

from fedpeft.tasks.base import Kind


def statistics(outputs: np.ndarray, labels: np.ndarray, kind: Kind) -> np.ndarray:
    """Return the sufficient statistics of the metrics, float64.

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


def scores(stats: np.ndarray, kind: Kind) -> dict[str, float]:
    """Return the metrics by name from (a sum of) ``statistics``.

    Classes: accuracy, matthews (the R_k of Gorodkin 2004 where there are more than two), and f1
    of class 1 where there are exactly two. Score: pearson.
    """
    if kind == "score":
        return {"pearson": _pearson(stats)}
    classes = math.isqrt(len(stats))
    confusion = stats.reshape(classes, classes)  # [label, prediction]
    result = {
        "accuracy": _ratio(np.trace(confusion), confusion.sum()),
        "matthews": _matthews(confusion),
    }
    if classes == 2:
        # 2 TP / (2 TP + FP + FN): each wrong row is a false positive or a false negative
        hits = 2 * confusion[1, 1]
        result["f1"] = _ratio(hits, hits + confusion[0, 1] + confusion[1, 0])
    return result


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return Spearman's rank correlation of two arrays of shape ``[n]``.

    It cannot be had from sums, so only where all predictions are in one place.
    """
    from scipy.stats import spearmanr

    if len(labels) < 2 or np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(spearmanr(predictions, labels).statistic)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else 0.0


def _matthews(confusion: np.ndarray) -> float:
    """Return R_k: the correlation of the one-hot labels with the one-hot predictions."""
    total = confusion.sum()
    labels, predictions = confusion.sum(axis=1), confusion.sum(axis=0)
    covariance = np.trace(confusion) * total - labels @ predictions
    spread = (total**2 - labels @ labels) * (total**2 - predictions @ predictions)
    return _ratio(covariance, math.sqrt(spread))


def _pearson(stats: np.ndarray) -> float:
    count, sum_x, sum_y, sum_xx, sum_yy, sum_xy = (float(value) for value in stats)
    spread_x, spread_y = count * sum_xx - sum_x**2, count * sum_yy - sum_y**2
    # What rounding leaves of a constant is not a spread: 1e-12 is far below any float32 output's.
    if not (spread_x > 1e-12 * count * sum_xx and spread_y > 1e-12 * count * sum_yy):
        return 0.0
    value = (count * sum_xy - sum_x * sum_y) / math.sqrt(spread_x * spread_y)
    return min(1.0, max(-1.0, value))
