"""Schemes of tags: how the tags of consecutive words make entities.

A scheme is recognized from all tags of a task together, so that each client and each file is read
alike. IOB1 is of Ramshaw and Marcus 1995, IOB2 and IOBES are described by Tjong Kim Sang and
Veenstra 1999, BILOU by Ratinov and Roth 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

OUTSIDE, PLAIN = "O", "plain"
_BEGIN, _IOB = "B", ("B", "I")
#: Marks by scheme: of the first word of an entity, a middle one, the last one, and a single word.
_MARKS = {
    "IOBES": ("B", "I", "E", "S"),
    "BILOU": ("B", "I", "L", "U"),
    "BMES": ("B", "M", "E", "S"),
}
#: Places of a mark in a tag: separator, and whether the mark is before it.
_PLACES = (("-", True), ("_", True), ("-", False), ("_", False))
Entities = set[tuple[int, int, int]]


@dataclass(frozen=True)
class Scheme:
    """What each of C tags says about its word.

    Attributes:
        name: "IOB1", "IOB2", "IOBES", "BILOU" or "BMES"; "plain" if the tags follow none, and
            neighbors with equal tags are an entity.
        types: index of the type of entity, -1 for "O", int64 ``[C]``.
        begins: whether the word is the first of its entity in any case, bool ``[C]``.
        ends: whether the word is the last of its entity in any case, bool ``[C]``.
    """

    name: str
    types: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def entities(self, tags: np.ndarray, starts: np.ndarray) -> Entities:
        """Return (type, first word, last word) of the entities in texts.

        An entity also begins at a word of a middle or last mark after a word of another type, after
        a last word, or at the start of a text, as in the script of CoNLL-2003.

        Args:
            tags: of all words of all texts, int64 ``[n]``; -1 = the word has none.
            starts: index of the first word of every text.
        """
        tags = np.append(tags, -1)  # also the tag before the first word
        types, before = np.where(tags < 0, -1, self.types[tags]), np.roll(tags, 1)
        inside, new = types >= 0, np.zeros(len(tags), bool)
        new[starts] = True
        new |= (types != np.roll(types, 1)) | self.begins[tags]
        new |= (before >= 0) & self.ends[before]
        first = np.flatnonzero(inside & new)
        borders = np.flatnonzero(new | ~inside)
        last = borders[np.searchsorted(borders, first, side="right")] - 1
        return set(zip(types[first].tolist(), first.tolist(), last.tolist(), strict=True))


def scheme_of(names: Sequence[str]) -> Scheme:
    """Return the scheme that all tags of a task follow.

    A name that only looks marked, such as "E-mail", is not: all tags but "O" have a mark in the
    same place, and the marks of each type belong together.
    """
    return _scheme(tuple(names))


@lru_cache(maxsize=64)
def _scheme(names: tuple[str, ...]) -> Scheme:
    marked = [name for name in names if name != OUTSIDE]
    for parts in _parts(marked):
        if name := _recognized(parts):
            begin, _, end, single = _MARKS.get(name, (_BEGIN, "I", "", ""))
            read = dict(zip(marked, parts, strict=True))
            return _described(names, name, read, begin + single, end + single)
    return _described(names, PLAIN, {name: ("", name) for name in marked}, "", "")


def _parts(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield mark and type of each tag, for each place of marks that the tags may have."""
    for separator, before in _PLACES:
        split = [n.partition(separator) if before else n.rpartition(separator) for n in names]
        if all(one and other for one, _, other in split):
            yield [(one, other) if before else (other, one) for one, _, other in split]
    yield [(name, "") for name in names]  # of a single type, tags may be bare marks


def _recognized(parts: Sequence[tuple[str, str]]) -> str:
    """Return the name of the scheme of tags with these marks and types; "" = none."""
    marks: dict[str, set[str]] = {}
    for mark, kind in parts:
        marks.setdefault(kind, set()).add(mark)
    if all(each <= {*_IOB} for each in marks.values()):
        return "IOB2" if all(_BEGIN in each for each in marks.values()) else "IOB1"
    for name, (begin, middle, end, single) in _MARKS.items():
        whole = [{begin, end} <= each <= {begin, middle, end, single} for each in marks.values()]
        alone = [each == {single} for each in marks.values()]
        if any(whole) and all(one or other for one, other in zip(whole, alone, strict=True)):
            return name
    return ""


def _described(
    names: Sequence[str], name: str, parts: dict[str, tuple[str, str]], begin: str, end: str
) -> Scheme:
    """Return a scheme from the mark and type of each tag, and the marks at begin and end."""
    index = {kind: at for at, kind in enumerate(dict.fromkeys(kind for _, kind in parts.values()))}
    marks = [parts[tag][0] if tag in parts else "" for tag in names]
    return Scheme(
        name,
        np.array([index[parts[tag][1]] if tag in parts else -1 for tag in names], np.int64),
        np.array([bool(mark) and mark in begin for mark in marks], bool),
        np.array([bool(mark) and mark in end for mark in marks], bool),
    )
