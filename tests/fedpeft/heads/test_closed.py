"""Heads in closed form against scikit-learn on the data, and against a search with the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from fedpeft.heads import Full, Head, Labelled, LowRank, Projected
from fedpeft.heads.closed import best_ridge, closed_form
from fedpeft.heads.moments import Moments

WIDTH, COUNT = 6, 90


def texts(classes: int, seed: int = 0, apart: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return features [n, width] of correlated coordinates, and classes [n]."""
    draw = np.random.default_rng(seed)
    labels = np.arange(COUNT) % classes
    mixing = draw.standard_normal((WIDTH, WIDTH))
    means = apart * draw.standard_normal((classes, WIDTH))
    return draw.standard_normal((COUNT, WIDTH)) @ mixing + means[labels] + 2, labels


def moments_of(features: np.ndarray, labels: np.ndarray, classes: int) -> Moments:
    return Moments.of(features, np.eye(classes)[labels], np.ones(len(features)))


def scored(seed: int = 0) -> tuple[np.ndarray, np.ndarray, Moments]:
    draw = np.random.default_rng(seed)
    features = draw.standard_normal((COUNT, WIDTH)) @ draw.standard_normal((WIDTH, WIDTH)) + 1
    scores = features @ draw.standard_normal(WIDTH) + 3 * draw.standard_normal(COUNT) + 7
    targets = np.stack([np.ones(COUNT), scores], axis=1)
    return features, scores, Moments.of(features, targets, np.ones(COUNT))


def ridge_of(features: np.ndarray, targets: np.ndarray) -> float:
    """Return the ridge of least generalized cross-validation, by the hat matrices of all ridges."""
    centered, errors = features - features.mean(0), []
    ridges = np.square(centered).mean() * 1e-2 * np.geomspace(1, 1e4, 120)
    for ridge in ridges:
        inverse = np.linalg.inv(centered.T @ centered + len(features) * ridge * np.eye(WIDTH))
        hat = centered @ inverse @ centered.T + 1 / len(features)
        missed = np.square(targets - hat @ targets).sum() / len(features)
        errors.append(missed / (1 - np.trace(hat) / len(features)) ** 2)
    return float(ridges[np.argmin(errors)])


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_get_the_discriminant_of_scikit_learn(classes: int) -> None:
    features, labels = texts(classes, apart=0.4)
    ridge = ridge_of(features, np.eye(classes)[labels])
    within = features - moments_of(features, labels, classes).totals[labels] * classes / COUNT
    variance = np.square(within).mean()
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=ridge / (ridge + variance))
    oracle.fit(features, labels)
    expected = features @ oracle_weights(oracle).T * (1 - oracle.shrinkage)
    fit = closed_form("classes", moments_of(features, labels, classes))
    logits = features @ fit.weight.T
    np.testing.assert_allclose(centered(logits), centered(expected), rtol=1e-6, atol=1e-6)
    outputs = logits + fit.bias(fit.weight)
    shrunk = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=ridge / (ridge + variance))
    assert (outputs.argmax(1) == shrunk.fit(features, labels).predict(features)).mean() > 0.98


def oracle_weights(oracle: LinearDiscriminantAnalysis) -> np.ndarray:
    return np.vstack([np.zeros(WIDTH), oracle.coef_]) if len(oracle.coef_) == 1 else oracle.coef_


def centered(logits: np.ndarray) -> np.ndarray:
    both = logits - logits.mean(1, keepdims=True)
    return both - both.mean(0)


def test_scores_get_the_ridge_regression_of_scikit_learn() -> None:
    features, scores, moments = scored()
    ridge = ridge_of(features, scores)
    oracle = Ridge(alpha=COUNT * ridge).fit(features, scores)
    fit = closed_form("score", moments)
    got = features @ fit.weight[0] + fit.bias(fit.weight)[0]
    np.testing.assert_allclose(got, oracle.predict(features), rtol=1e-8)


def test_logits_of_many_confident_classes_are_scaled_and_predict_the_same() -> None:
    features, labels = texts(5, apart=30.0)
    moments = moments_of(features, labels, 5)
    fit = closed_form("classes", moments)
    logits = features @ fit.weight.T + fit.bias(fit.weight)
    assert (logits.argmax(1) == labels).all()
    means = np.stack([logits[labels == label].mean(0) for label in range(5)])
    above = (np.diag(means) - means.mean(1)).mean()
    assert above == pytest.approx(4 * np.log(5))


def test_a_class_without_examples_starts_at_the_odds_of_half_an_example() -> None:
    features, labels = texts(3, apart=0.4)
    fit = closed_form("classes", moments_of(features, labels, 4))
    assert not fit.weight[3].any()
    assert fit.level[3] == pytest.approx(np.log(0.5 / COUNT))
    assert np.isfinite(fit.bias(fit.weight)).all()


def test_the_ridge_is_at_least_half_the_radius_of_the_spectrum_of_the_error() -> None:
    features, labels = texts(2)
    moments = replace(moments_of(features, labels, 2), noise=1e6)
    covariance, slopes = np.cov(features.T), np.ones((2, WIDTH))
    assert best_ridge(covariance, slopes, 1e3, moments, COUNT) >= np.sqrt(1e6 * WIDTH) / COUNT


def test_without_second_moments_classes_are_told_apart_by_their_means() -> None:
    features, labels = texts(3, apart=3.0)
    moments = replace(moments_of(features, labels, 3), scatter=None)
    fit = closed_form("classes", moments)
    means = moments.totals * 3 / COUNT
    distances = np.square(features[:, None] - means).sum(2)
    outputs = features @ fit.weight.T + fit.bias(fit.weight)
    assert (outputs.argmax(1) == distances.argmin(1)).all()


def test_features_without_variance_give_weights_without_effect() -> None:
    """One client with one example, or a backbone that gives every text the same features."""
    for kind, targets in (("classes", np.eye(2)[[0, 1]]), ("score", np.array([[1, 3], [1, 3.0]]))):
        moments = Moments.of(np.ones((2, WIDTH)), targets, np.ones(2))
        fit = closed_form(kind, moments)  # type: ignore[arg-type]
        assert np.isfinite(fit.weight).all(), kind
        assert np.abs(fit.weight).max() < 1e-6, kind
    nothing = Moments.of(np.zeros((2, WIDTH)), np.eye(2), np.ones(2))
    assert not closed_form("classes", nothing).weight.any()


def test_small_heads_start_from_the_best_fit() -> None:
    features, labels = texts(5)
    fit = closed_form("classes", moments_of(features, labels, 5))
    wanted = features @ fit.weight.T + fit.bias(fit.weight)
    errors = {}
    for name, weights in {
        "full": Full(5, WIDTH),
        "rank 1": LowRank(5, WIDTH, 1),
        "rank 2": LowRank(5, WIDTH, 2),
        "d 8": Projected(5, WIDTH, 8, 0),
        "d 29": Projected(5, WIDTH, 29, 0),
        "labels": Labelled(LowRank(5, WIDTH, 2), ["a", "b", "c", "d", "e"], "mean"),
    }.items():
        head = Head("classes", weights)
        parameters = head.nearest(fit)
        shapes = {key: value.shape for key, value in parameters.items()}
        assert shapes == head.parameters(), name
        reached = weights.nearest(fit.weight, fit.root)[1]
        outputs = features @ reached.T + parameters["head.bias"]
        np.testing.assert_allclose(outputs.mean(0), wanted.mean(0), atol=1e-8)
        errors[name] = np.square(outputs - wanted).mean()
    assert errors["full"] < 1e-12
    assert errors["rank 2"] < errors["rank 1"]
    assert errors["d 29"] < errors["d 8"]
    assert errors["labels"] == errors["rank 2"]
