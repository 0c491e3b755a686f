import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from sklearn import metrics as oracle

from fedpeft.tasks.metrics import scores, spearman, statistics


def logits_for(predictions, classes):
    """Logits whose largest entry is the prediction."""
    return np.eye(classes)[predictions] * 3.0 - 1.0


@st.composite
def predicted_classes(draw):
    classes = draw(st.integers(2, 5))
    count = draw(st.integers(1, 60))
    column = st.lists(st.integers(0, classes - 1), min_size=count, max_size=count)
    return np.array(draw(column)), np.array(draw(column)), classes


@settings(deadline=None, max_examples=150)
@given(predicted_classes())
def test_class_metrics_are_those_of_scikit_learn(drawn):
    predictions, labels, classes = drawn
    found = scores(statistics(logits_for(predictions, classes), labels, "classes"), "classes")
    assert found["accuracy"] == pytest.approx(oracle.accuracy_score(labels, predictions), abs=1e-12)
    expected = 0.0
    if len(np.unique(np.concatenate([labels, predictions]))) > 1:
        expected = oracle.matthews_corrcoef(labels, predictions)
    assert found["matthews"] == pytest.approx(expected, abs=1e-12)
    assert ("f1" in found) == (classes == 2)
    if classes == 2:
        expected = oracle.f1_score(labels, predictions, zero_division=0)
        assert found["f1"] == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32), st.integers(3, 200), st.floats(0.01, 100), st.floats(-20, 20))
def test_pearson_and_spearman_are_those_of_scipy(seed, count, scale, shift):
    random = np.random.default_rng(seed)
    labels = random.uniform(0, 5, count)
    predictions = scale * (labels + random.normal(size=count)) + shift
    found = scores(statistics(predictions[:, None], labels, "score"), "score")
    expected = scipy_stats.pearsonr(predictions, labels).statistic
    assert found == {"pearson": pytest.approx(expected, abs=1e-7)}
    expected = scipy_stats.spearmanr(predictions, labels).statistic
    assert spearman(predictions, labels) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(predicted_classes(), st.integers(0, 60))
def test_summed_confusion_counts_are_exactly_those_of_the_whole(drawn, cut):
    predictions, labels, classes = drawn
    logits = logits_for(predictions, classes)
    whole = statistics(logits, labels, "classes")
    parts = statistics(logits[:cut], labels[:cut], "classes")
    parts += statistics(logits[cut:], labels[cut:], "classes")
    assert parts.tolist() == whole.tolist()
    assert scores(parts, "classes") == scores(whole, "classes")


def test_summed_score_statistics_give_the_pearson_of_the_whole():
    random = np.random.default_rng(0)
    labels = random.uniform(0, 5, 1000)
    outputs = (labels + random.normal(size=1000))[:, None]
    pieces = np.array_split(np.arange(1000), 13)
    parts = sum(statistics(outputs[rows], labels[rows], "score") for rows in pieces)
    whole = scores(statistics(outputs, labels, "score"), "score")
    assert scores(parts, "score")["pearson"] == pytest.approx(whole["pearson"], abs=1e-12)


def test_confusion_is_label_by_prediction():
    # two rows of class 0 taken for class 2, one row of class 1 right
    found = statistics(logits_for([2, 2, 1], 3), np.array([0, 0, 1]), "classes")
    assert found.reshape(3, 3).tolist() == [[0, 0, 2], [0, 1, 0], [0, 0, 0]]


def test_a_perfect_result_is_exactly_one():
    labels = np.array([0, 1, 2] * 777 + [0])
    found = scores(statistics(logits_for(labels, 3), labels, "classes"), "classes")
    assert found == {"accuracy": 1.0, "matthews": 1.0}
    found = scores(statistics(labels[:, None] * 2.0, labels * 1.0, "score"), "score")
    assert found == {"pearson": 1.0}


@pytest.mark.parametrize("value", [0.1, 3.3, 1e6])
def test_constant_predictions_have_correlation_zero(value):
    labels = np.linspace(0, 5, 999)
    outputs = np.full((999, 1), value)
    assert scores(statistics(outputs, labels, "score"), "score") == {"pearson": 0.0}
    assert spearman(outputs[:, 0], labels) == 0.0


def test_no_examples_score_zero():
    empty = np.zeros(0, np.int64)
    found = scores(statistics(np.zeros((0, 2)), empty, "classes"), "classes")
    assert found == {"accuracy": 0.0, "matthews": 0.0, "f1": 0.0}
    assert scores(statistics(np.zeros((0, 1)), empty, "score"), "score") == {"pearson": 0.0}
    assert spearman(np.zeros(0), empty) == 0.0
