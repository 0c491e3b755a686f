"""Predictions: those of evaluation, row by row, from files as people have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from finished import finished_run, made_up, small
from scipy.special import softmax

from fedpeft import predicting
from fedpeft.errors import RunFailed, UserError
from fedpeft.predicting import predict, read_texts
from fedpeft.runtime import Runtime
from fedpeft.tasks import Examples
from fedpeft.trained import Trained
from fedpeft.training import evaluate

SLASH = ("method.name=slash", "method.d=12")
TAGS = ("task.name=synthetic/entities", "method.name=lora", "method.rank=2")


def trained_on(*overrides: str) -> Trained:
    return Trained.read(finished_run(*overrides))


def dev_of(trained: Trained) -> tuple[Examples, np.ndarray]:
    """Return a run's evaluation examples and what evaluation makes of them."""
    runtime = Runtime(trained.experiment)
    return runtime.task.dev, evaluate(runtime.model, trained.vector, runtime.dev).outputs


@pytest.mark.parametrize("representation", ["mask", "cls", "mean", "unit"])
def test_classes_are_those_of_evaluation(
    representation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "_CHUNK", 7)  # texts come in several chunks
    task = ("task.name=synthetic/inference", f"representation={representation}")
    trained = trained_on(*task, *SLASH)
    dev, outputs = dev_of(trained)
    done: list[int] = []
    predictions = predict(trained, dev, done.append)
    assert done == [7, 14, 21, 24]
    assert [prediction.value for prediction in predictions] == [
        trained.labels[i] for i in outputs.argmax(axis=1)
    ]
    chances = [list(prediction.probabilities or {}) for prediction in predictions]
    assert chances == [list(trained.labels)] * len(dev)
    shares = [list((prediction.probabilities or {}).values()) for prediction in predictions]
    np.testing.assert_allclose(shares, softmax(outputs, axis=1), atol=1e-6)


def test_scores_are_those_of_evaluation() -> None:
    trained = trained_on("task.name=synthetic/similarity", *SLASH)
    dev, outputs = dev_of(trained)
    predictions = predict(trained, dev)
    np.testing.assert_allclose(
        [prediction.value for prediction in predictions], outputs[:, 0], atol=1e-5
    )
    assert {prediction.probabilities for prediction in predictions} == {None}


def test_tags_are_those_of_evaluation(tmp_path: Path) -> None:
    trained = trained_on(*TAGS)
    dev, outputs = dev_of(trained)
    encoded = Runtime(trained.experiment).dev
    words = encoded.labels >= 0
    expected = [trained.labels[tag] for tag in outputs[words].argmax(axis=1)]
    path = tmp_path / "words.jsonl"
    path.write_text("".join(json.dumps({"text": words}) + "\n" for words in dev.text))
    predictions = predict(trained, read_texts(trained, path))
    assert [tag for prediction in predictions for tag in as_tags(prediction.value)] == expected
    assert [len(as_tags(prediction.value)) for prediction in predictions] == [
        len(words) for words in dev.text
    ]


def as_tags(value: str | float | list[str | None]) -> list[str | None]:
    assert isinstance(value, list)
    return value


def test_words_that_are_cut_off_get_no_prediction(tmp_path: Path) -> None:
    trained = trained_on(*TAGS, "task.max_length=8")  # six tokens and the special ones
    path = tmp_path / "words.jsonl"
    rows = [["the"] * 9, ["the", "", "nurse"], ["xyz", "the", "the", "the", "the"]]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    predictions = [
        as_tags(prediction.value) for prediction in predict(trained, read_texts(trained, path))
    ]
    absent = [[tag is None for tag in tags] for tags in predictions]
    assert absent == [[False] * 6 + [True] * 3, [False, True, False], [False] * 4 + [True]]


def test_words_may_stand_between_blanks_or_in_lists(tmp_path: Path) -> None:
    trained = trained_on(*TAGS)
    dev, _ = dev_of(trained)
    pd.DataFrame({"text": dev.text}).to_parquet(tmp_path / "a.parquet")
    lines = [" ".join(words) for words in dev.text]
    (tmp_path / "a.tsv").write_text("text\n" + "\n".join(lines) + "\n")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    for name in ("a.parquet", "a.tsv", "a.jsonl"):
        assert read_texts(trained, tmp_path / name).text == dev.text


def frame_with(*columns: str) -> pd.DataFrame:
    return pd.DataFrame({name: [f"{name} one", f"{name} two"] for name in columns})


PAIR = ("task.name=synthetic/similarity",)


@pytest.mark.parametrize(
    ("task", "columns", "options", "expected"),
    [
        ("synthetic/sentiment", ["text"], {}, ("text", None)),
        ("synthetic/sentiment", ["text", "label"], {}, ("text", None)),
        ("synthetic/sentiment", ["text", "body"], {"text": "body"}, ("body", None)),
        ("synthetic/similarity", ["text", "text_pair"], {}, ("text", "text_pair")),
        ("synthetic/similarity", ["a", "b"], {"text": "a", "text_pair": "b"}, ("a", "b")),
        (
            "synthetic/similarity",
            ["label", "b"],
            {"text": "b", "text_pair": "label"},
            ("b", "label"),
        ),
        ("synthetic/similarity", ["a", "text_pair"], {"text": "a"}, ("a", "text_pair")),
        ("sst2", ["sentence", "text"], {}, ("sentence", None)),
        ("sst2", ["text"], {}, ("text", None)),
        ("mnli", ["premise", "hypothesis"], {}, ("premise", "hypothesis")),
        ("mnli", ["sentence1", "sentence2"], {}, ("sentence1", "sentence2")),
        ("mnli", ["text", "text_pair"], {}, ("text", "text_pair")),
        ("qnli", ["question", "sentence"], {}, ("question", "sentence")),
        ("rte", ["sentence1", "sentence2"], {}, ("sentence1", "sentence2")),
        ("custom", ["one", "two", "text"], {}, ("one", "two")),
        ("custom", ["text", "text_pair"], {}, ("text", "text_pair")),
    ],
)
def test_columns_are_found_by_the_tasks_names(
    tmp_path: Path,
    task: str,
    columns: Sequence[str],
    options: dict[str, str],
    expected: tuple[str, str | None],
) -> None:
    trained = named(task)
    frame_with(*columns).to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    predictions = read_texts(trained, tmp_path / "a.tsv", **options)
    one, two = expected
    assert predictions.text == [f"{one} one", f"{one} two"]
    assert predictions.text_pair == (None if two is None else [f"{two} one", f"{two} two"])


def named(task: str) -> Trained:
    """Return a run as if it had been one of another task, of a single text or of pairs."""
    single = task in ("synthetic/sentiment", "sst2")
    trained = trained_on(*(() if single else PAIR), *SLASH)
    values = {**trained.experiment.task.model_dump(), "name": task}
    if task == "custom":
        values |= {"text": "one", "text_pair": "two"}
    section = type(trained.experiment.task)(**values)
    experiment = trained.experiment.model_copy(update={"task": section})
    fields = {name: getattr(trained, name) for name in Trained.__dataclass_fields__}
    return Trained(**{**fields, "experiment": experiment})


@pytest.mark.parametrize(
    ("task", "columns", "options", "words"),
    [
        ("synthetic/sentiment", ["body"], {}, "no column 'text', but 'body'; set --text"),
        ("sst2", ["body", "x"], {}, "no column 'sentence' or 'text', but 'body', 'x'"),
        ("synthetic/sentiment", ["text"], {"text": "body"}, "no column 'body', but 'text'"),
        (
            "mnli",
            ["text"],
            {},
            "no column 'premise' and 'hypothesis' or 'sentence1' and 'sentence2' or 'text' and "
            "'text_pair', but 'text'; set --text and --text-pair",
        ),
        ("sst2", ["text", "b"], {"text_pair": "b"}, "--text-pair b: task 'sst2' has only one text"),
    ],
)
def test_missing_columns_are_refused(
    tmp_path: Path, task: str, columns: Sequence[str], options: dict[str, str], words: str
) -> None:
    frame_with(*columns).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError) as caught:
        read_texts(named(task), tmp_path / "a.csv", **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("run", "line", "words"),
    [
        (SLASH, '{"text": 3}', "row 1: column 'text' is int, expected text"),
        (SLASH, '{"text": " "}', "row 1: column 'text' is empty"),
        (SLASH, '{"text": null}', "row 1: column 'text' is empty"),
        (TAGS, '{"text": 3}', "row 1: column 'text' is int, expected a list of words or a text"),
        (TAGS, '{"text": ["a", 3]}', "row 1: column 'text' is list, expected a list of words"),
        (TAGS, '{"text": []}', "row 1: column 'text' is empty"),
        (SLASH, '{"text": "a \\ud83d"}', "row 1: column 'text' is not valid Unicode"),
        (TAGS, '{"text": ["a", "\\ude00"]}', "row 1: column 'text' is not valid Unicode"),
    ],
)
def test_rows_without_a_text_are_refused(
    tmp_path: Path, run: Sequence[str], line: str, words: str
) -> None:
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(UserError) as caught:
        read_texts(trained_on(*run), tmp_path / "a.jsonl")
    assert words in str(caught.value)


def test_an_output_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    path = made_up(tmp_path / "vector", small(*SLASH), scale=1e38)
    trained = Trained.read(path)
    with pytest.raises(RunFailed, match="not finite"):
        predict(trained, Examples(["good"], None, np.zeros(1)))
