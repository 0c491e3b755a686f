"""`fedpeft predict` and `fedpeft export` as a person uses them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from finished import finished_run, method
from models import SMALL
from safetensors import safe_open

from fedpeft.cli.predict import as_lines, as_table
from fedpeft.predicting import Prediction

TEXTS = ["the film last night was truly wonderful", "i thought the soup was awful"]
SLASH = ("method.name=slash", "method.d=12")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A file of texts without labels."""
    path = tmp_path / "in.tsv"
    path.write_text("\n".join(["text", *TEXTS]) + "\n")
    return path


def rows_of(printed: str) -> list[list[str]]:
    return [line.split("\t") for line in printed.splitlines()]


def test_predictions_are_printed_as_tsv(fedpeft, texts: Path) -> None:
    code, printed, errors = fedpeft("predict", finished_run(*SLASH), texts)
    assert (code, errors) == (0, "")
    header, *rows = rows_of(printed)
    assert header == ["prediction", "p(negative)", "p(positive)"] and len(rows) == len(TEXTS)
    for label, *chances in rows:
        shares = dict(zip(("negative", "positive"), map(float, chances), strict=True))
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert label == max(shares, key=shares.__getitem__)


def test_all_file_formats_give_the_same_predictions(fedpeft, texts: Path, tmp_path: Path) -> None:
    run = finished_run(*SLASH)
    _, printed, _ = fedpeft("predict", run, texts)
    outs = {name: tmp_path / f"out.{name}" for name in ("tsv", "csv", "jsonl", "parquet")}
    for out in outs.values():
        code, said, errors = fedpeft("predict", run, texts, "--out", out)
        assert (code, said, errors) == (0, f"written: {out} ({len(TEXTS)} rows)\n", "")
    assert outs["tsv"].read_text() == printed
    with open(outs["csv"], newline="") as file:
        assert list(csv.reader(file)) == rows_of(printed)
    lines = [json.loads(line) for line in outs["jsonl"].read_text().splitlines()]
    assert [line["prediction"] for line in lines] == [row[0] for row in rows_of(printed)[1:]]
    for line, row in zip(lines, rows_of(printed)[1:], strict=True):
        assert list(line["probabilities"].values()) == pytest.approx([*map(float, row[1:])], 1e-5)
    table = pd.read_parquet(outs["parquet"])
    assert table.columns.tolist() == rows_of(printed)[0]
    assert table["prediction"].tolist() == [line["prediction"] for line in lines]
    for chances, line in zip(table.iloc[:, 1:].to_numpy(), lines, strict=True):
        assert chances.tolist() == [*line["probabilities"].values()]


def test_scores_and_tags_are_predicted(fedpeft, texts: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"one": TEXTS[0], "two": TEXTS[1]}) + "\n")
    options = ("--text", "one", "--text-pair", "two")
    run = finished_run("task.name=synthetic/similarity", *SLASH)
    code, printed, _ = fedpeft("predict", run, pairs, *options)
    assert code == 0 and rows_of(printed)[0] == ["prediction"]
    float(rows_of(printed)[1][0])
    run = finished_run("task.name=synthetic/entities", *SLASH)
    code, printed, _ = fedpeft("predict", run, texts)
    tags = [row[0].split() for row in rows_of(printed)[1:]]
    assert code == 0 and [len(argument) for argument in tags] == [
        len(text.split()) for text in TEXTS
    ]
    out = tmp_path / "new" / "deep" / "tags.jsonl"
    fedpeft("predict", run, texts, "--out", out)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["prediction"] for line in lines] == tags
    fedpeft("predict", run, texts, "--out", out.with_suffix(".parquet"))
    table = pd.read_parquet(out.with_suffix(".parquet"))
    assert [[*row] for row in table["prediction"]] == tags
    assert [[*row] for row in table["probabilities"]] == [line["probabilities"] for line in lines]
    for line in lines:
        assert len(line["probabilities"]) == len(line["prediction"])
        assert all(0 < chance <= 1 for chance in line["probabilities"])


def test_words_that_are_cut_off_are_reported(fedpeft, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"text": ["the"] * 200}) + "\n")
    run = finished_run("task.name=synthetic/entities", *SLASH)
    code, printed, errors = fedpeft("predict", run, long)
    silent = printed.split().count("null")
    assert code == 0 and silent > 50
    expected = "cut at task.max_length = 128 tokens: 1 of 1 texts", "words without a tag, because "
    assert [line[: len(one)] for one, line in zip(expected, errors.splitlines(), strict=True)] == [
        *expected
    ]
    assert errors.endswith(f": {silent}\n")


def test_texts_that_are_cut_off_are_reported(fedpeft, tmp_path: Path) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("text\n" + "great film " * 100 + "\ngood\n")
    code, _, errors = fedpeft("predict", finished_run(*SLASH), long)
    assert (code, errors) == (0, "cut at task.max_length = 128 tokens: 1 of 2 texts\n")


def test_an_empty_row_is_refused_and_shifts_no_other(fedpeft, tmp_path: Path) -> None:
    file = tmp_path / "gap.tsv"
    file.write_text("text\na great film\n\nbad\n\n")
    code, printed, errors = fedpeft("predict", finished_run(*SLASH), file)
    assert code == 2 and not printed and "gap.tsv row 2: column 'text' is empty" in errors
    file.write_text("text\na great film\nbad\n\n\n")  # at the end they are no rows
    code, printed, _ = fedpeft("predict", finished_run(*SLASH), file)
    assert code == 0 and len(rows_of(printed)) == 3


def test_labels_with_separators_are_escaped_in_tables() -> None:
    predictions = [Prediction('a\t"b"', {'a\t"b"': 0.75, "c, d": 0.25}), Prediction(["x", None])]
    assert as_table(predictions[:1], ['a\t"b"', "c, d"], tabs=True) == (
        'prediction\tp(a "b")\tp(c, d)\na "b"\t0.75\t0.25\n'
    )
    text = as_table(predictions[:1], ['a\t"b"', "c, d"], tabs=False)
    assert next(csv.reader(text.splitlines()[1:])) == ['a\t"b"', "0.75", "0.25"]
    assert as_table(predictions[1:], ["x"], tabs=True) == "prediction\nx null\n"
    assert as_lines(predictions[1:]) == '{"prediction": ["x", null]}\n'


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_vector_file_predicts_like_its_run(
    fedpeft, texts: Path, tmp_path: Path, name: str
) -> None:
    run, out = finished_run(*method(name, SMALL[name])), tmp_path / "vector.safetensors"
    code, printed, _ = fedpeft("export", run, "--format", "vector", "--out", out)
    assert code == 0 and f"written: {out}" in printed
    with safe_open(out, framework="numpy") as file:
        about = json.loads(file.metadata()["fedpeft"])
    assert {"experiment", "seed", "parameters", "labels", "kind", "digests"} <= set(about)
    assert fedpeft("predict", out, texts) == fedpeft("predict", run, texts)


def test_exports_go_into_the_runs_folder(fedpeft, texts: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished_run("representation=cls", *SLASH), tmp_path / "run")
    for kind, name in (("hf", "export-hf"), ("vector", "export-vector")):
        code, printed, errors = fedpeft("export", folder, "--format", kind)
        assert code == 0 and printed == f"written: {folder / name}\n", errors
        assert (folder / name).exists()
        code, _, errors = fedpeft("export", folder, "--format", kind)
        assert code == 2 and "choose another" in errors
    code, _, errors = fedpeft("predict", folder, texts)
    assert code == 0, errors


def mistakes() -> list[tuple[list[str], str]]:
    vector = ["export", "RUN", "--format", "vector", "--out"]
    return [
        (["predict", "nowhere", "in.tsv"], "'nowhere': no such run folder or vector file"),
        (["predict", "empty", "in.tsv"], "'empty' contains no run"),
        (["predict", "RUN", "nowhere.tsv"], "nowhere.tsv: no such file"),
        (["predict", "RUN", "in.xlsx"], "in.xlsx: unknown kind of file"),
        (["predict", "RUN", "in.tsv", "--text", "body"], "in.tsv: no column 'body'"),
        (["predict", "RUN", "in.tsv", "--text-pair", "b"], "--text-pair b: task"),
        (["predict", "RUN", "in.tsv", "--out", "a.xlsx"], "--out a.xlsx: unknown file type"),
        (["predict", "RUN", "in.tsv", "--out", "in.tsv"], "--out in.tsv: the file exists already"),
        (
            ["predict", "RUN", "in.tsv", "--out", "in.tsv/a/b.tsv"],
            "--out in.tsv/a/b.tsv: cannot be written ('in.tsv' is a file)",
        ),
        (["predict", "in.tsv", "in.tsv"], "'in.tsv' is not a fedpeft vector"),
        (["export", "RUN"], "--format"),
        (["export", "RUN", "--format", "onnx"], "onnx"),
        (["export", "RUN", "--format", "hf"], "method 'prefix' cannot be merged"),
        (["export", "RUN", "--format", "peft"], "peft has no adapter for method 'prefix'"),
        (["export", "empty", "--format", "hf"], "'empty' contains no run"),
        ([*vector, "in.tsv"], "--out in.tsv: the file exists already"),
        ([*vector, "in.tsv/vector"], "--out in.tsv/vector: cannot be written"),
    ]


@pytest.mark.parametrize(("arguments", "words"), mistakes())
def test_mistakes_end_with_code_2_and_one_line(
    fedpeft,
    texts: Path,
    tmp_path: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    run: Any = finished_run(*method("prefix", SMALL["prefix"]))
    before, files = texts.read_text(), {*tmp_path.iterdir(), *run.iterdir()}
    code, printed, errors = fedpeft(
        *(run if argument == "RUN" else argument for argument in arguments)
    )
    assert (code, printed) == (2, "") and words in errors
    assert errors.count("\n") == 1
    assert {*tmp_path.iterdir(), *run.iterdir()} == files and texts.read_text() == before


def test_both_commands_have_help_with_an_example(fedpeft) -> None:
    for command in ("predict", "export"):
        code, printed, _ = fedpeft(command, "--help")
        assert code == 0 and f"Example: fedpeft {command}" in printed
