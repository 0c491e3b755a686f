import re

import numpy as np
import pytest

from fedpeft.backbones.tiny_words import vocabulary
from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import load_task
from fedpeft.tasks.grammars import GRAMMARS
from fedpeft.tasks.synthetic import TASKS, examples

NAMES = [info.name for info in TASKS]
PRAISE = (
    "wonderful great lovely excellent delightful superb pleasant good brilliant amazing charming "
    "splendid perfect fantastic fine beautiful"
)
SORTS = {
    "indoors": ("kitchen", "library", "bedroom", "office", "hallway"),
    "outdoors": ("garden", "beach", "forest", "by the river", "hill"),
    "early": ("before breakfast", "dawn", "sunrise", "eight", "waking"),
    "late": ("after dinner", "midnight", "dusk", "sunset", "going to bed"),
}
OPPOSITE = {"indoors": "outdoors", "outdoors": "indoors", "early": "late", "late": "early"}


def sentiment_rule(text, _):
    words = text.split()
    return (words[-1] in PRAISE.split()) != (words[-2] in {"not", "hardly"})


def crowd_rule(text, _):
    clause = text.removeprefix("after ")
    assert clause != text
    return sentiment_rule(text, _)


def inference_rule(premise, hypothesis):
    sorts = set(hypothesis.split()) & SORTS.keys()
    if not sorts:
        return 1
    (sort,) = sorts
    same = any(phrase in premise for phrase in SORTS[sort])
    other = any(phrase in premise for phrase in SORTS[OPPOSITE[sort]])
    assert same != other
    return 0 if same else 2


def similarity_rule(one, other):
    """5 slots of which each has its own words: count those that agree."""
    slots = [
        "nurse farmer teacher painter sailor baker lawyer student",
        "carried painted dropped bought found sold",
        "lamp chair boat coat box ring",
        "kitchen beach market bridge stairs train",
        "noon midnight winter monday dinner storm",
    ]
    shared = [set(text.split()) for text in (one, other)]
    return sum(shared[0] & words == shared[1] & words for words in map(set, map(str.split, slots)))


PHRASES = {
    "WHO": "the (nurse|farmer|teacher|painter|sailor|baker|lawyer|student)",
    "WHAT": r"(a|an) (red|old|small|green|heavy|silver) \w+",
    "WHERE": "(in|on|near|under|at) the (kitchen|beach|bridge|stairs|train|market)",
    "WHEN": "at noon|at midnight|last winter|on monday|before dinner|during the storm",
}


def entities_rule(words, _):
    text = " ".join(words)
    tags = ["O"] * len(words)
    for role, phrase in PHRASES.items():
        (actual,) = re.finditer(rf"\b({phrase})\b", text)
        start = text[: actual.start()].count(" ")
        length = len(actual[0].split())
        tags[start : start + length] = [f"B-{role}", *[f"I-{role}"] * (length - 1)]
    return [TASKS[-1].labels.index(tag) for tag in tags]


RULES = dict(
    zip(
        NAMES,
        (sentiment_rule, inference_rule, similarity_rule, crowd_rule, entities_rule),
        strict=True,
    )
)


def joined(texts):
    """Return the texts as strings, also those that are lists of words."""
    return [text if isinstance(text, str) else " ".join(text) for text in texts or []]


def keys(part):
    texts = joined(part.text)
    return set(zip(texts, part.text_pair or texts, strict=True))


def space_size(name):
    """Return the number of distinct texts of a synthetic task."""
    return GRAMMARS[name].classes * GRAMMARS[name].size


def synthetic(name, train=0, dev=0, seed=0):
    return load_task(TaskSection(name=name, train_limit=train, eval_limit=dev), seed)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_texts_of_a_grammar_are_distinct(name):
    size = space_size(name)
    assert size >= 100_000
    # of 88 million texts every 200th or so: no common multiple of the sizes of the slots
    everything = examples(name, np.arange(0, size, 1 if size < 1e6 else 211))
    assert len(keys(everything)) == len(everything)


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_a_grammar_are_lowercase_words_and_distinct(name):
    everything = examples(name, np.arange(0, space_size(name), space_size(name) // 10_000 | 1))
    assert len(keys(everything)) == len(everything)
    some = everything.select(np.arange(0, len(everything), 97))
    for text in joined(some.text) + joined(some.text_pair):
        assert 6 <= len(text.split()) <= 20, text
        assert text == text.lower()
        assert text.replace(" ", "").isalpha()


@pytest.mark.parametrize("name", NAMES)
def test_documented_rule_gives_every_label(name):
    task = synthetic(name)
    assert task.info.best == 1.0
    for part in (task.train, task.dev):
        seconds = part.text_pair or part.text
        actual = [RULES[name](*row) for row in zip(part.text, seconds, strict=True)]
        assert actual == [np.asarray(label).tolist() for label in part.labels]


@pytest.mark.parametrize("name", NAMES)
def test_text_is_a_function_of_its_index(name):
    indices = np.array([5, 77_777, 5, space_size(name) - 1])
    together = examples(name, indices)
    for row, index in enumerate(indices):
        alone = examples(name, np.array([index]))
        assert keys(alone) == keys(together.select(np.array([row])))
        assert np.array_equal(alone.labels[0], together.labels[row])


@pytest.mark.parametrize("name", NAMES)
def test_default_sizes_seed_and_order(name):
    task, same, other = synthetic(name), synthetic(name), synthetic(name, seed=1)
    assert (len(task.train), len(task.dev)) == (4000, 1000)
    assert task.train.text == same.train.text
    assert len(keys(task.train) & keys(other.train)) < 400
    assert len(keys(task.train)) == 4000


@pytest.mark.parametrize("name", NAMES)
def test_train_and_dev_are_disjoint_for_any_seeds_and_sizes(name):
    train, dev = set(), set()
    for seed, (more, less) in enumerate([(20_000, 10_000), (3, 7), (15_000, 500)]):
        task = synthetic(name, more, less, seed)
        assert (len(task.train), len(task.dev)) == (more, less)
        train |= keys(task.train)
        dev |= keys(task.dev)
    assert not train & dev


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("size", [4000, 1000, 100, 7])
def test_classes_are_balanced_within_one_example_and_shuffled(name, size):
    labels = synthetic(name, size).train.labels
    assert labels.dtype == np.int64
    assert np.ptp(np.bincount(labels, minlength=labels.max() + 1)) <= 1
    assert (np.diff(labels) != 0).sum() > size // 4  # not sorted by class


def test_words_are_about_equally_frequent_in_train_and_dev():
    """The split must not hold back a word: each appears in dev about as often as in train."""
    task = synthetic("synthetic/sentiment", 16_000, 16_000)
    counts = []
    for part in (task.train, task.dev):
        words, number = np.unique(" ".join(part.text).split(), return_counts=True)
        counts.append(dict(zip(words.tolist(), number.tolist(), strict=True)))
    assert counts[0].keys() == counts[1].keys()
    ratios = [counts[1][word] / counts[0][word] for word in counts[0]]
    assert min(ratios) > 0.8 and max(ratios) < 1.25


def test_no_single_word_determines_the_label():
    """The best guess from one word is far from 1: a word of praise is negated in a third."""
    train = synthetic("synthetic/sentiment", 8000).train
    for word in ["not", "hardly", "wonderful", "awful"]:
        has = train.labels[[word in text.split() for text in train.text]]
        assert 0.2 < has.mean() < 0.8, word


def test_similarity_has_all_six_scores():
    labels = synthetic("synthetic/similarity").train.labels
    assert labels.dtype == np.float64
    assert sorted(set(labels.tolist())) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_tiny_vocabulary_equals_the_words_of_the_grammars():
    used = set()
    for name in NAMES:
        size = space_size(name)
        part = examples(name, np.arange(0, size, 311 if size < 1e6 else 7919))
        used.update(*(text.split() for text in joined(part.text) + joined(part.text_pair)))
    assert vocabulary() == sorted(used)


def test_tag_of_a_word_depends_on_the_words_after_it():
    part = synthetic("synthetic/entities").train
    actual = {word: set() for word in ("the", "at", "on")}
    for words, tags in zip(part.text, part.labels, strict=True):
        assert len(words) == len(tags)
        for word, tag in zip(words, tags, strict=True):
            actual.get(word, set()).add(TASKS[-1].labels[tag])
    assert actual["the"] == {"O", "B-WHO", "I-WHERE", "I-WHEN"}
    assert actual["at"] == {"B-WHERE", "B-WHEN"}
    assert actual["on"] == {"B-WHERE", "B-WHEN"}


def test_excessive_limits_and_owner_columns_are_refused():
    with pytest.raises(UserError, match=r"task.train_limit = 999999: .* has \d+ different"):
        synthetic("synthetic/sentiment", 999_999)
    with pytest.raises(UserError, match=r"task.eval_limit = 999999: .* has \d+ different"):
        synthetic("synthetic/sentiment", 10, 999_999)
    with pytest.raises(UserError, match="'synthetic/sentiment' has no columns"):
        load_task(TaskSection(), owner_column="who")
