import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from seqeval import metrics as seqeval_metrics
from sklearn import metrics as oracle

from fedpeft.tasks.metrics import (
    check_statistics,
    examples_of,
    scores,
    spearman,
    statistics,
    statistics_size,
    tag_statistics,
    unsummable_scores,
)


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


TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@st.composite
def tagged_texts(draw):
    """Texts as (labels, predictions) of their tokens; a label of -100 is not evaluated."""
    token = st.tuples(st.sampled_from([-100, *range(len(TAGS))]), st.integers(0, len(TAGS) - 1))
    return draw(st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=12))


def measured(texts, names=TAGS):
    """The statistics of texts as ``tagged_texts`` gives them."""
    labels, predictions = (
        np.array([token[side] for text in texts for token in text], dtype=np.int64)
        for side in (0, 1)
    )
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    return tag_statistics(logits_for(predictions, len(names)), labels, lengths, names)


def named(texts, side, names=TAGS):
    return [[names[token[side]] for token in text if token[0] >= 0] for text in texts]


@settings(deadline=None, max_examples=150)
@given(tagged_texts())
def test_entity_metrics_are_those_of_seqeval(texts):
    found = scores(measured(texts), "tags")
    labels, predictions = named(texts, 0), named(texts, 1)
    for name in ("f1", "precision", "recall"):
        score = getattr(seqeval_metrics, f"{name}_score")
        expected = score(labels, predictions, zero_division=0) if any(labels) else 0.0
        assert found[name] == pytest.approx(expected, abs=1e-12), name
    words = [token for text in texts for token in text if token[0] >= 0]
    right = sum(label == prediction for label, prediction in words)
    assert found["accuracy"] == pytest.approx(right / max(1, len(words)), abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(tagged_texts(), st.integers(0, 12))
def test_summed_counts_of_entities_are_exactly_those_of_the_whole(texts, cut):
    whole, parts = measured(texts), measured(texts[:cut]) + measured(texts[cut:])
    assert parts.tolist() == whole.tolist()
    assert scores(parts, "tags") == scores(whole, "tags")
    assert examples_of(whole, "tags") == len(texts)
    assert len(whole) == statistics_size("tags", len(TAGS))
    check_statistics(whole, "tags")


def test_counts_of_a_text_by_hand():
    # PER PER | O | LOC, of which the LOC is found, the PER one word too long
    text = [(-100, 1), (1, 1), (2, 2), (-100, 0), (0, 2), (3, 3), (-100, 4)]
    assert measured([text]).tolist() == [1, 4, 3, 1, 2, 2]
    assert scores(measured([text]), "tags") == {
        "f1": 0.5,
        "precision": 0.5,
        "recall": 0.5,
        "accuracy": 0.75,
    }


def test_an_entity_does_not_reach_into_the_next_text():
    """The same tokens as one text and as two: I-PER there begins an entity of its own."""
    tokens = [(1, 1), (2, 2)]
    assert measured([tokens]).tolist() == [1, 2, 2, 1, 1, 1]
    assert measured([tokens[:1], tokens[1:]]).tolist() == [2, 2, 2, 2, 2, 2]
    assert measured([[(-100, 0)], tokens, [(-100, 0)]]).tolist() == [3, 2, 2, 1, 1, 1]


def test_tags_without_marks_are_runs():
    names = ("O", "PER", "LOC")
    texts = [[(1, 1), (1, 1), (0, 0), (2, 1), (2, 1)]]
    assert measured(texts, names).tolist() == [1, 5, 3, 1, 2, 2]


def test_nothing_tagged_scores_zero():
    empty = dict.fromkeys(("f1", "precision", "recall", "accuracy"), 0.0)
    assert scores(measured([]), "tags") == empty
    assert measured([]).tolist() == [0] * 6
    assert scores(measured([[(-100, 1)]]), "tags") == empty


@pytest.mark.parametrize(
    ("stats", "kind"),
    [
        ([9.0, -5, 7, 2], "classes"),
        ([0.0, 0, 0, 0], "classes"),
        ([0.0, 1, 1, 1, 1, 1], "score"),
        ([1.5, 1, 1, 1, 1, 1], "score"),
        ([0.0, 0, 0, 0, 0, 0], "tags"),
        ([2.0, 5, 5.5, 1, 1, 1], "tags"),
    ],
)
def test_what_counts_nothing_is_refused(stats, kind):
    with pytest.raises(ValueError, match="no counts of examples"):
        check_statistics(np.array(stats), kind)


@pytest.mark.parametrize("stats", [[1, 5, 6, 0, 0, 0], [1, 5, 5, 2, 1, 2], [1, 5, 5, 2, 6, 2]])
def test_more_right_than_there_is_is_refused(stats):
    with pytest.raises(ValueError, match="count more than there is"):
        check_statistics(np.array(stats, dtype=float), "tags")


def test_scores_that_sums_cannot_give():
    outputs, labels = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 4.0])
    assert unsummable_scores("score", outputs, labels) == {"spearman": pytest.approx(1.0)}
    assert unsummable_scores("score") == {"spearman": None}
    assert unsummable_scores("tags") == unsummable_scores("classes", outputs, labels) == {}
