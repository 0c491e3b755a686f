"""Tasks of text on the command line: predictions, and mistakes in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from text_runs import settings, table


def options(values: dict[str, object]) -> list[str]:
    return [part for key, value in values.items() for part in ("-s", f"{key}={value}")]


@pytest.mark.slow
def test_predict_writes_texts(fedpeft, tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = settings("gpt2", tmp_path, **{"federation.rounds": 1, "task.metric": "accuracy"})
    assert fedpeft("simulate", *options(chosen), "--out", run)[0] == 0
    new, out = table(tmp_path / "new.jsonl", 3), tmp_path / "out.jsonl"
    code, printed, errors = fedpeft("predict", run, new, "--out", out)
    assert (code, printed, errors) == (0, f"written: {out} (3 rows)\n", "")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 3 and all([*row] == ["prediction"] for row in rows)
    assert all(isinstance(row["prediction"], str) for row in rows)
    code, printed, errors = fedpeft("predict", run, new)
    header, *lines = printed.splitlines()
    assert (code, errors, header) == (0, "", "prediction")
    assert lines == [" ".join(row["prediction"].split()) for row in rows]
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert {*metrics} == {"accuracy", "perplexity"}  # nothing was generated


MISTAKES: list[tuple[dict[str, object], str]] = [
    (
        {"backbone": "tiny"},
        "backbone = 'tiny': a roberta model is an encoder and writes no text; task.kind",
    ),
    ({"task.max_length": 60, "task.max_target": 11}, "has 70 positions for both with this method"),
    ({"method.name": "linear"}, "method.name = 'linear': trains only a head"),
    ({"task.prompt": "no"}, "task.prompt = 'no': expected {source} in it exactly once"),
    ({"task.prompt": "a b c d e f g h i j k {source}", "task.max_length": 8}, "without the source"),
    ({"task.labels": "a,b"}, "task.labels = 'a,b': a task of text has none"),
    ({"head.rank": 2}, "head.rank = 2: a task of text has no head"),
    ({"task.kind": "classes"}, "task.source = 'question': is for task.kind = 'text'"),
    ({"partition.kind": "dirichlet"}, "needs classes; 'custom' has texts to write"),
    ({"task.source": "qestion"}, "no column 'qestion'; did you mean 'question'?"),
    ({"method.name": "prompt", "task.beams": 3}, "task.beams = 3: this method adds tokens"),
    ({"adversary.fraction": 0.4, "adversary.attack": "label_flip"}, "is for tasks with classes"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_a_mistake_is_one_line(
    change: dict[str, object], message: str, fedpeft, tmp_path: Path, capsys
) -> None:
    values = {**settings("gpt2", tmp_path), **change}
    capsys.readouterr()  # transformers reports the saved model
    if values["method.name"] != "lora":
        del values["method.rank"]
    code, _, errors = fedpeft("simulate", *options(values), "--out", tmp_path / "run")
    assert code == 2 and message in errors
    assert errors.startswith("error: ") and errors.count("\n") == 1


def test_an_empty_target_is_one_line(fedpeft, tmp_path: Path) -> None:
    values = settings("gpt2", tmp_path)
    with open(str(values["task.train"]), "a") as file:
        file.write('{"question": "the film was", "answer": " "}\n')
    code, _, errors = fedpeft("simulate", *options(values), "--out", tmp_path / "run")
    assert code == 2 and errors.endswith("pairs.jsonl row 41: column 'answer' is empty\n")
