"""Caveats of scores: counts of what was cut, and the words for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from text_runs import settings

import fedpeft
from fedpeft.experiment.config import Experiment
from fedpeft.tasks.base import TaskInfo
from fedpeft.tasks.caveats import check_counts, named, remarks, tags_read

Quick = Callable[..., Experiment]


def test_a_run_that_writes_states_cut_targets_and_references_too_short(tmp_path: Path) -> None:
    """Answers of three tokens, with the end; two are read."""
    rows = [{"question": f"the film {k}", "answer": "good fun"} for k in range(40)]
    table = tmp_path / "answers.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = {"task.metric": "bleu", "task.max_target": 2, "federation.rounds": 1}
    values = {**settings("gpt2", tmp_path, **chosen), "task.train": str(table)}
    here = fedpeft.simulate(values, tmp_path / "a").result
    there = fedpeft.simulate({**values, "federation.evaluation": "clients"}, tmp_path / "b").result
    assert here["caveats"] == there["caveats"] == {"targets_cut": 4, "short_references": 4}
    assert here["metrics"]["accuracy"] == there["metrics"]["accuracy"] <= 2 / 3
    expected = [
        "cut at task.max_target = 2 tokens: 4 of 4 targets; what is cut counts as missed",
        "shorter than 4 words: 4 of 4 references; BLEU is 0 without 4 words in a row, even if "
        "all are right: see chrf",
    ]
    assert here["remarks"] == there["remarks"] == expected


@pytest.mark.parametrize(
    ("metric", "short", "said"), [("bleu", 21, True), ("bleu", 20, False), ("chrf", 40, False)]
)
def test_short_references_are_stated_if_most_are_and_bleu_is_the_score(
    quick: Quick, metric: str, short: int, said: bool
) -> None:
    info = TaskInfo("custom", "text", (), False, metric, None, "")
    assert bool(remarks({"short_references": short}, quick(), info, 40)) == said


def test_numbers_as_tags_are_stated_with_the_setting_that_names_them() -> None:
    def read(*labels: str) -> str:
        return tags_read(TaskInfo("custom", "tags", labels, False, "f1", None, ""))

    assert read("O", "B-PER", "I-PER") == "tags: IOB2"
    assert "task.labels names them" in read("0", "1", "3")
    assert read("O", "PER").startswith("tags: plain (no scheme fits")
    assert read("NOUN", "VERB") == "tags: plain, of single words"


def test_only_counts_that_are_not_zero_are_kept() -> None:
    counts = np.array([0.0, 70, 0, 2])
    check_counts(counts, 2)
    assert named(counts) == {"words_unread": 70, "short_references": 2}
