"""The tasks with many classes that the benchmark of heads writes."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from simulations.benchmarks.parts.many_classes import BLANK, frequent_nouns, intents, nouns

TEXTS = [
    f"where is the {noun} of number {index} ?" for index in range(12) for noun in ("lamp", "chair")
]


def rows(folder: Path, split: str) -> list[tuple[str, str]]:
    with (folder / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file, delimiter="\t")]


def test_intents_have_every_class_in_both_splits(tmp_path: Path) -> None:
    assert intents(tmp_path, seed=0, train=600, dev=300) == 150
    for split, count in (("train", 4), ("dev", 2)):
        assert set(Counter(label for _, label in rows(tmp_path, split)).values()) == {count}


def test_a_task_may_have_fewer_classes(tmp_path: Path) -> None:
    assert intents(tmp_path / "intents", seed=0, classes=50) == 50
    assert len({label for _, label in rows(tmp_path / "intents", "dev")}) == 50
    assert nouns(tmp_path / "nouns", TEXTS, 0, cut=False, classes=1) == 1


def test_frequent_nouns_stand_where_nouns_do() -> None:
    assert set(frequent_nouns(TEXTS, 5)) == {"lamp", "chair"}
    assert len(frequent_nouns(TEXTS, 1)) == 1


def test_a_noun_is_the_class_and_is_cut_out(tmp_path: Path) -> None:
    both = "the lamp is on the chair ."
    for cut in (False, True):
        folder = tmp_path / str(cut)
        assert nouns(folder, [*TEXTS, both], 0, cut) == 2
        train, dev = rows(folder, "train"), rows(folder, "dev")
        assert (len(train), len(dev)) == (20, 4)
        for text, label in train + dev:
            assert "lamp" not in text or "chair" not in text
            assert (label in text, BLANK in text) == (not cut, cut)
