"""Schemes of tags against seqeval, on tags that a slow way converts to IOB2 with neutral names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval

from fedpeft.batches.cut import Cut
from fedpeft.tasks.metrics import scores, tag_statistics
from fedpeft.tasks.schemes import scheme_of

#: Marks by scheme: first, middle, last and single words.
SCHEMES = {"IOB1": "IIII", "IOB2": "BIIB", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES"}
TYPES = ["PER", "LOC", "DOC", "a-b", "x_y"]  # seqeval reads LOC and DOC as one type
PLACES = ["{mark}-{kind}", "{mark}_{kind}", "{kind}-{mark}", "{kind}_{mark}"]


def names_of(scheme: str, place: str, kinds: list[str]) -> list[str]:
    marks = dict.fromkeys("IB" if scheme == "IOB1" else SCHEMES[scheme])
    names = [place.format(mark=mark, kind=kind) for kind in kinds for mark in marks]
    if scheme == "IOB1":  # the last type never follows itself
        names.remove(place.format(mark="B", kind=kinds[-1]))
    return ["O", *names]


def converted(tags: list[str], scheme: str, place: str, kinds: list[str]) -> list[str]:
    """Tags of a text as IOB2 with the types T0, T1, ..., word by word."""
    first, _, last, single = SCHEMES[scheme]
    ends = {last, single} if scheme in ("IOBES", "BILOU", "BMES") else set()
    begins = {first, single} if ends else {"B"}
    read = {
        place.format(mark=mark, kind=kind): (mark, f"T{at}")
        for at, kind in enumerate(kinds)
        for mark in "BIELUMS"
    }
    result, before = [], ("", "")
    for tag in tags:
        mark, kind = read.get(tag, ("", ""))
        begun = kind != before[1] or mark in begins or before[0] in ends
        result.append(f"{'B' if begun else 'I'}-{kind}" if kind else "O")
        before = mark, kind
    return result


def score_of(texts: list[list[tuple[int, int]]], names: list[str]) -> dict[str, float]:
    gold, predicted = (
        np.array([word[side] for text in texts for word in text], np.int64) for side in (0, 1)
    )
    lengths = np.array([len(text) for text in texts], np.int64)
    return scores(tag_statistics(np.eye(len(names))[predicted], gold, lengths, names), "tags")


@st.composite
def tagged(draw: st.DrawFn) -> tuple[str, str, list[str], list[str], list[list[tuple[int, int]]]]:
    """A scheme, the place of its marks, types, names in any order, and any tags of texts."""
    scheme, place = draw(st.sampled_from([*SCHEMES])), draw(st.sampled_from(PLACES))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True))
    names = draw(st.permutations(names_of(scheme, place, kinds)))
    tag = st.integers(0, len(names) - 1)
    word = st.one_of(tag.map(lambda code: (code, code)), st.tuples(tag, tag))
    texts = draw(st.lists(st.lists(word, min_size=1, max_size=12), min_size=1, max_size=8))
    return scheme, place, kinds, names, texts


@settings(deadline=None, max_examples=400)
@given(tagged())
def test_entities_equal_seqeval_on_converted_tags(
    drawn: tuple[str, str, list[str], list[str], list[list[tuple[int, int]]]],
) -> None:
    scheme, place, kinds, names, texts = drawn
    assert scheme_of(names).name == scheme
    gold, predicted = (
        [converted([names[word[side]] for word in text], scheme, place, kinds) for text in texts]
        for side in (0, 1)
    )
    actual = score_of(texts, names)
    for name in ("f1", "precision", "recall"):
        expected = getattr(seqeval, f"{name}_score")(gold, predicted, zero_division=0)
        assert actual[name] == pytest.approx(expected, abs=1e-12), name


#: Entities as (type, number of words), and predicted ones: one is missing, one ends too early.
GOLD = [("PER", 2), ("LOC", 1), ("", 1), ("PER", 3), ("LOC", 2), ("PER", 1)]
GUESS = [("PER", 2), ("", 1), ("", 1), ("PER", 2), ("", 1), ("LOC", 2), ("PER", 1)]


def marked(entities: list[tuple[str, int]], scheme: str, place: str) -> list[str]:
    first, middle, last, single = SCHEMES[scheme]
    tags = []
    for kind, length in entities:
        marks = single if length == 1 else first + middle * (length - 2) + last
        tags += [place.format(mark=mark, kind=kind) if kind else "O" for mark in marks]
    return tags


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("scheme", [*SCHEMES])
def test_the_same_entities_score_the_same_in_all_schemes(scheme: str, place: str) -> None:
    """3 of 5 entities are right, 4 are predicted."""
    names = names_of(scheme, place, ["PER", "LOC"])
    code = {name: at for at, name in enumerate(names)}
    gold, guess = (
        [code[tag] for tag in marked(entities, scheme, place)] for entities in (GOLD, GUESS)
    )
    assert score_of([[*zip(gold, guess, strict=True)]], names)["f1"] == pytest.approx(2 * 3 / 9)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["O", "B-PER", "I-PER"], "IOB2"),
        (["O", "I-PER", "I-LOC", "B-LOC"], "IOB1"),
        (["O", "B", "I"], "IOB2"),
        (["B", "M", "E", "S"], "BMES"),
        (["O", "S-PER", "B-LOC", "E-LOC"], "IOBES"),
        (["O", "E-mail", "S-Bahn"], "plain"),  # no mark: nothing begins
        (["O", "E-mail", "S-Bahn", "PER"], "plain"),
        (["O", "B-PER", "I-PER", "E-mail"], "plain"),
        (["O", "B-PER", "I_PER"], "plain"),
        (["O", "B-PER", "LOC-B"], "plain"),
        (["O", "PER", "LOC"], "plain"),
        (["0", "1", "3"], "plain"),
        (["NOUN", "VERB"], "plain"),
    ],
)
def test_a_scheme_is_recognized_from_all_names_together(names: list[str], expected: str) -> None:
    assert scheme_of(names).name == expected


def test_plain_names_that_look_marked_are_types_of_their_own() -> None:
    """Two neighbors with the tag E-mail are one entity, and mail is no type of E-mail."""
    names = ["O", "E-mail", "S-Bahn"]
    assert scheme_of(names).entities(np.array([1, 1, 2, 0, 1]), np.array([0])) == {
        (0, 0, 1),
        (1, 2, 2),
        (0, 4, 4),
    }


def test_words_that_were_cut_count_as_missed() -> None:
    """Thirty entities of which twenty are cut, all others right; one lies across the limit."""
    names, one = ["O", "B-PER", "I-PER"], np.array([1, 2])
    read = np.append(np.tile(one, 9), 1)  # of nine entities and the first word of the tenth
    rest = np.append(2, np.tile(one, 20))
    words = np.empty(2, object)
    words[0] = np.stack([np.full(len(rest), len(read)), rest], axis=1)
    words[1] = np.array([[0, 1], [1, 0]])  # a text of which only the second word is read
    gold = np.append(read, 0)
    counts = tag_statistics(
        np.eye(3)[gold], gold, np.array([len(read), 1]), names, Cut(np.array([True, False]), words)
    )
    total = len(read) + len(rest) + 3
    assert counts.tolist() == [2, total, len(read) + 1, 9, 10, 31]
    assert scores(counts, "tags")["f1"] == pytest.approx(2 * 9 / 41)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_unread_words_count_as_words_with_a_tag_that_nobody_has(data: st.DataObject) -> None:
    """The same as predicting O for them, but for words that are O."""
    names = ["O", "B-PER", "I-PER"]
    word = st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans())
    texts = data.draw(st.lists(st.lists(word, max_size=8), min_size=1, max_size=5))
    gold = np.array([w[0] for text in texts for w in text if w[2]], np.int64)
    guess = np.array([w[1] for text in texts for w in text if w[2]], np.int64)
    unread = np.empty(len(texts), object)
    for row, text in enumerate(texts):
        lost = [(sum(w[2] for w in text[:at]), w[0]) for at, w in enumerate(text) if not w[2]]
        unread[row] = np.array(lost, np.int64).reshape(-1, 2)
    lengths = np.array([sum(w[2] for w in text) for text in texts])
    logits, cut = np.eye(3)[guess], Cut(np.zeros(len(texts), bool), unread)
    actual = tag_statistics(logits, gold, lengths, names, cut)
    seen = [[(g, p if read else 0) for g, p, read in text] for text in texts]
    whole = np.array([w for text in seen for w in text], np.int64).reshape(-1, 2)
    expected = tag_statistics(
        np.eye(3)[whole[:, 1]], whole[:, 0], np.array([len(text) for text in texts]), names
    )
    expected[2] -= sum(not read and g == 0 for text in texts for g, _, read in text)
    assert actual.tolist() == expected.tolist()
