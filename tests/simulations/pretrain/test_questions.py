"""Pairs of sentence and question from files like QNLI's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpeft.errors import UserError
from simulations.benchmarks.pretrain.questions import main

HEADER = "sentence1\tsentence2\tlabel\n"
#: The quote of the first row is never closed: GLUE's files have no quoting.
ROWS = (
    'Who "sang?\tAda sang.\tentailment\n'
    "When?\tBo slept.\tnot_entailment\n"
    "Où?\tÀ Évry.\tentailment\n"
)


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """A folder with QNLI's two files."""
    (tmp_path / "glue" / "QNLI").mkdir(parents=True)
    for name in ("train", "dev"):
        (tmp_path / "glue" / "QNLI" / f"{name}.tsv").write_text(HEADER + ROWS, "utf-8")
    return tmp_path / "glue"


def test_only_answered_questions_are_written_in_order(glue: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    main(["--glue", str(glue), "--out", str(out)])
    expected = [
        {"sentence": "Ada sang.", "question": 'Who "sang?'},
        {"sentence": "À Évry.", "question": "Où?"},
    ]
    for name in ("train", "dev"):
        lines = (out / f"{name}.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == expected
    with pytest.raises(UserError, match="exists already; choose another"):
        main(["--glue", str(glue), "--out", str(out)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"train\.tsv: no such file"),
        ("question\tsentence2\tlabel\na\tb\tentailment\n", "no column 'sentence1'"),
        (HEADER + "a\tb\tnot_entailment\n", "no row with label 'entailment'"),
    ],
)
def test_wrong_files_are_one_line_and_nothing_is_written(
    glue: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    path = glue / "QNLI" / "train.tsv"
    path.unlink() if content is None else path.write_text(content, "utf-8")
    with pytest.raises(UserError, match=message):
        main(["--glue", str(glue), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
