import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from seqeval import metrics as seqeval_metrics
from sklearn import metrics as oracle

from fedpeft.tasks import available_tasks
from fedpeft.tasks.metrics import (
    check_statistics,
    examples_of,
    scores,
    spearman,
    statistics,
    statistics_size,
    tag_statistics,
    undefined,
    unsummable_scores,
)
from fedpeft.wire.formats import encode


def logits_for(predictions, classes):
    """Logits whose largest entry is the prediction."""
    return np.eye(classes)[predictions] * 3.0 - 1.0


@st.composite
def predicted_classes(draw):
    classes = draw(st.integers(2, 5) | st.integers(6, 300))
    count = draw(st.integers(1, 60))
    column = st.lists(st.integers(0, classes - 1), min_size=count, max_size=count)
    return np.array(draw(column)), np.array(draw(column)), classes


@settings(deadline=None, max_examples=150)
@given(predicted_classes())
def test_class_metrics_equal_scikit_learn(drawn):
    predictions, labels, classes = drawn
    actual = scores(statistics(logits_for(predictions, classes), labels, "classes"), "classes")
    assert actual["accuracy"] == pytest.approx(
        oracle.accuracy_score(labels, predictions), abs=1e-12
    )
    expected = 0.0
    if len(np.unique(np.concatenate([labels, predictions]))) > 1:
        expected = oracle.matthews_corrcoef(labels, predictions)
    assert actual["matthews"] == pytest.approx(expected, abs=1e-12)
    assert ("f1" in actual) == (classes == 2)
    if classes == 2:
        expected = oracle.f1_score(labels, predictions, zero_division=0)
        assert actual["f1"] == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32), st.integers(3, 200), st.floats(0.01, 100), st.floats(-20, 20))
def test_pearson_and_spearman_equal_scipy(seed, count, scale, shift):
    random = np.random.default_rng(seed)
    labels = random.uniform(0, 5, count)
    predictions = scale * (labels + random.normal(size=count)) + shift
    actual = scores(statistics(predictions[:, None], labels, "score"), "score")
    expected = scipy_stats.pearsonr(predictions, labels).statistic
    assert actual == {"pearson": pytest.approx(expected, abs=1e-7)}
    expected = scipy_stats.spearmanr(predictions, labels).statistic
    assert spearman(predictions, labels) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(predicted_classes(), st.integers(0, 60))
def test_summed_class_counts_equal_those_of_all_examples(drawn, cut):
    predictions, labels, classes = drawn
    logits = logits_for(predictions, classes)
    whole = statistics(logits, labels, "classes")
    parts = statistics(logits[:cut], labels[:cut], "classes")
    parts += statistics(logits[cut:], labels[cut:], "classes")
    assert parts.tolist() == whole.tolist()
    assert scores(parts, "classes") == scores(whole, "classes")


def test_summed_score_statistics_give_the_pearson_of_all_examples():
    random = np.random.default_rng(0)
    labels = random.uniform(0, 5, 1000)
    outputs = (labels + random.normal(size=1000))[:, None]
    pieces = np.array_split(np.arange(1000), 13)
    parts = sum(statistics(outputs[rows], labels[rows], "score") for rows in pieces)
    whole = scores(statistics(outputs, labels, "score"), "score")
    assert scores(parts, "score")["pearson"] == pytest.approx(whole["pearson"], abs=1e-12)


def test_counts_of_classes_counted_by_hand():
    # two rows of class 0 taken for class 2, one row of class 1 right
    actual = statistics(logits_for([2, 2, 1], 3), np.array([0, 0, 1]), "classes")
    assert actual.tolist() == [2, 1, 0, 0, 1, 2, 1]


@pytest.mark.parametrize("classes", [2, 77, 4000])
def test_the_bytes_of_a_reply_are_linear_in_the_classes(classes):
    labels = np.arange(classes) % 10
    counts = statistics(logits_for(labels, classes), labels, "classes")
    assert len(counts) == statistics_size("classes", classes) == 2 * classes + 1
    assert examples_of(counts, "classes") == classes
    assert len(encode(counts, "float64")) == 16 * classes + 8  # 64 KB for 4,000, not 128 MB


@settings(deadline=None, max_examples=150)
@given(predicted_classes())
def test_statistics_of_any_classes_are_accepted(drawn):
    predictions, labels, classes = drawn
    counts = statistics(logits_for(predictions, classes), labels, "classes")
    check_statistics(counts, "classes", max_length=16)  # raises nothing
    assert examples_of(counts, "classes") == len(labels)


def test_exactly_the_possible_counts_of_two_classes_are_accepted():
    def accepted(counts):
        try:
            check_statistics(np.array(counts, float), "classes", max_length=16)
        except ValueError:
            return False
        return True

    possible = set()  # from confusion counts of up to three examples, the slow way
    for a, b, c, d in itertools.product(range(4), repeat=4):
        if 0 < a + b + c + d < 4:
            possible.add((a + b, c + d, a + c, b + d, a + d))
    for counts in itertools.product(range(4), repeat=5):
        if sum(counts[:2]) < 4:
            assert accepted(counts) == (counts in possible), counts


def test_perfect_predictions_score_exactly_one():
    labels = np.array([0, 1, 2] * 777 + [0])
    actual = scores(statistics(logits_for(labels, 3), labels, "classes"), "classes")
    assert actual == {"accuracy": 1.0, "matthews": 1.0}
    actual = scores(statistics(labels[:, None] * 2.0, labels * 1.0, "score"), "score")
    assert actual == {"pearson": 1.0}


@pytest.mark.parametrize("value", [0.1, 3.3, 1e6])
def test_constant_predictions_have_correlation_zero(value):
    labels = np.linspace(0, 5, 999)
    outputs = np.full((999, 1), value)
    assert scores(statistics(outputs, labels, "score"), "score") == {"pearson": 0.0}
    assert spearman(outputs[:, 0], labels) == 0.0


def test_no_examples_score_zero():
    empty = np.zeros(0, np.int64)
    actual = scores(statistics(np.zeros((0, 2)), empty, "classes"), "classes")
    assert actual == {"accuracy": 0.0, "matthews": 0.0, "f1": 0.0}
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
def test_entity_metrics_equal_seqeval(texts):
    actual = scores(measured(texts), "tags")
    labels, predictions = named(texts, 0), named(texts, 1)
    for name in ("f1", "precision", "recall"):
        score = getattr(seqeval_metrics, f"{name}_score")
        expected = score(labels, predictions, zero_division=0) if any(labels) else 0.0
        assert actual[name] == pytest.approx(expected, abs=1e-12), name
    words = [token for text in texts for token in text if token[0] >= 0]
    right = sum(label == prediction for label, prediction in words)
    assert actual["accuracy"] == pytest.approx(right / max(1, len(words)), abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(tagged_texts(), st.integers(0, 12))
def test_summed_entity_counts_equal_those_of_all_texts(texts, cut):
    whole, parts = measured(texts), measured(texts[:cut]) + measured(texts[cut:])
    assert parts.tolist() == whole.tolist()
    assert scores(parts, "tags") == scores(whole, "tags")
    assert examples_of(whole, "tags") == len(texts)
    assert len(whole) == statistics_size("tags", len(TAGS))
    check_statistics(whole, "tags", max_length=16)


def test_entity_counts_of_a_text_counted_by_hand():
    # PER PER | O | LOC, of which the LOC is found, the PER one word too long
    text = [(-100, 1), (1, 1), (2, 2), (-100, 0), (0, 2), (3, 3), (-100, 4)]
    assert measured([text]).tolist() == [1, 4, 3, 1, 2, 2]
    assert scores(measured([text]), "tags") == {
        "f1": 0.5,
        "precision": 0.5,
        "recall": 0.5,
        "accuracy": 0.75,
    }


def test_entities_end_with_their_text():
    """The same tokens as one text and as two: I-PER there begins an entity of its own."""
    tokens = [(1, 1), (2, 2)]
    assert measured([tokens]).tolist() == [1, 2, 2, 1, 1, 1]
    assert measured([tokens[:1], tokens[1:]]).tolist() == [2, 2, 2, 2, 2, 2]
    assert measured([[(-100, 0)], tokens, [(-100, 0)]]).tolist() == [3, 2, 2, 1, 1, 1]


def test_tags_without_prefix_are_entities_of_equal_tags():
    names = ("O", "PER", "LOC")
    texts = [[(1, 1), (1, 1), (0, 0), (2, 1), (2, 1)]]
    assert measured(texts, names).tolist() == [1, 5, 3, 1, 2, 2]


def test_text_without_entities_scores_zero():
    empty = dict.fromkeys(("f1", "precision", "recall", "accuracy"), 0.0)
    assert scores(measured([]), "tags") == empty
    assert measured([]).tolist() == [0] * 6
    assert scores(measured([[(-100, 1)]]), "tags") == empty


@pytest.mark.parametrize(
    ("stats", "kind"),
    [
        ([9.0, -5, 7, 2, 4], "classes"),
        ([0.0, 0, 0, 0, 0], "classes"),
        ([2.0, 2, 2, 2, 3], "classes"),
        ([0.0, 1, 1, 1, 1, 1], "score"),
        ([1.5, 1, 1, 1, 1, 1], "score"),
        ([0.0, 0, 0, 0, 0, 0], "tags"),
        ([2.0, 5, 5.5, 1, 1, 1], "tags"),
    ],
)
def test_statistics_that_are_not_counts_are_refused(stats, kind):
    with pytest.raises(ValueError, match="no counts of examples"):
        check_statistics(np.array(stats), kind, max_length=16)


@pytest.mark.parametrize("stats", [[1, 5, 6, 0, 0, 0], [1, 5, 5, 2, 1, 2], [1, 5, 5, 2, 6, 2]])
def test_statistics_with_more_correct_than_total_are_refused(stats):
    with pytest.raises(ValueError, match="count more than there is"):
        check_statistics(np.array(stats, dtype=float), "tags", max_length=16)


@pytest.mark.parametrize(
    ("task", "labels", "said"),
    [
        ("stsb", [2.5, 2.5], "every evaluation example has the score 2.5, so pearson is 0"),
        ("stsb", [2.5, 3.0], ""),
        ("cola", [1, 1], "every evaluation example is of class 'acceptable', so matthews is 0"),
        ("cola", [1, 0], ""),
        ("mrpc", [0, 0], "so f1 is 0 whatever is predicted"),
        ("mrpc", [1, 1], ""),
        ("sst2", [0, 0], ""),
        ("sst2", [], ""),
    ],
)
def test_metrics_that_the_labels_leave_undefined_are_said(task, labels, said):
    (info,) = [info for info in available_tasks() if info.name == task]
    line = undefined(info, np.array(labels))
    assert said in line and bool(said) == bool(line)
    if line:  # for any predictions
        for seed in range(5):
            outputs = np.random.default_rng(seed).normal(size=(len(labels), info.classes))
            found = scores(statistics(outputs, np.array(labels), info.kind), info.kind)
            assert found[info.metric] == 0.0


def test_spearman_needs_all_outputs_in_one_place():
    outputs, labels = np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 2.0, 4.0])
    assert unsummable_scores("score", outputs, labels) == {"spearman": pytest.approx(1.0)}
    assert unsummable_scores("score") == {"spearman": None}
    assert unsummable_scores("tags") == unsummable_scores("classes", outputs, labels) == {}


@pytest.mark.parametrize(
    ("kind", "stats", "reason"),
    [
        ("classes", [1e15, 0, 0, 1, 1], "more than 10000000 examples"),
        ("classes", [1.7e308] * 5, "more than 10000000 examples"),
        ("classes", [1e7, 1, 1, 1e7, 2], "more than 10000000 examples"),
        ("classes", [5, 5, 5, 4, 8], "more than there is"),
        ("classes", [2, 0, 4, 2, 2, 2, 5], "more than there is"),
        ("classes", [5, 1, 0, 5, 0, 1, 3], "more than there is"),
        ("tags", [1e8, 5, 5, 0, 0, 0], "more than 10000000 examples"),
        ("tags", [1, 17, 5, 0, 0, 0], "more than 16 words in a text"),
        ("tags", [0, 5, 5, 0, 0, 0], "more than 16 words in a text"),
        ("score", [1e8, 0, 0, 1, 1, 0], "more than 10000000 examples"),
        ("score", [2, 0, 0, 1e300, 1, 0], r"scores beyond 1e\+09"),
        ("score", [2, 0, 0, -1, 1, 0], r"scores beyond 1e\+09"),
        ("score", [2, 9, 0, 1, 1, 0], "sums of no scores"),
        ("score", [2, 0, 0, 1, 1, -9], "sums of no scores"),
    ],
)
def test_statistics_out_of_range_are_refused(kind, stats, reason):
    with pytest.raises(ValueError, match=reason):
        check_statistics(np.array(stats, dtype=float), kind, max_length=16)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=1, max_size=9))
def test_statistics_of_any_scores_are_accepted(pairs):
    outputs, labels = np.array(pairs).T
    sums = statistics(outputs[:, None], labels, "score")
    check_statistics(sums, "score", max_length=16)  # raises nothing
    assert examples_of(sums, "score") == len(pairs)
