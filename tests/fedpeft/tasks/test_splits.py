"""Own tasks from data sets that ``datasets`` reads, in a local folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import TaskSection
from fedpeft.runtime import runtime_of
from fedpeft.tasks import Task, load_task, local_files
from fedpeft.tasks.splits import Source, source_of

CLASSES = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})


def save(folder: Path, features: Features = CLASSES, **splits: list[Any]) -> Path:
    """Write splits, each a list of (text, label), as Parquet files of the hub."""
    folder.mkdir(exist_ok=True)
    for name, rows in splits.items():
        columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
        Dataset.from_dict(columns, features).to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


def load(train: str | Path, **keys: Any) -> Task:
    return load_task(TaskSection(name="custom", train=str(train), **keys))


ROWS = [("fine", 1), ("poor", 0), ("good", 1), ("bad", 0)]


def test_classes_have_their_names_and_the_splits_their_parts(tmp_path: Path) -> None:
    folder = save(tmp_path / "set", train=ROWS, validation=ROWS[:3], test=[("new", 0)])
    task = load(folder)
    assert task.info.labels == ("neg", "pos")
    assert (task.train.text, task.train.labels.tolist()) == (
        ["fine", "poor", "good", "bad"],
        [1, 0, 1, 0],
    )
    assert (task.dev.text, task.dev.labels.tolist()) == (["fine", "poor", "good"], [1, 0, 1])
    assert load(folder, dev=f"{folder}:test").dev.text == ["new"]
    assert load("set", path=str(tmp_path)).dev.text == task.dev.text
    held_out = load(f"{folder}:train")  # one split is named: nothing else is read
    assert sorted(held_out.train.text + held_out.dev.text) == ["bad", "fine", "good", "poor"]


def test_without_a_split_to_evaluate_on_rows_are_held_out(tmp_path: Path) -> None:
    task = load(save(tmp_path / "set", train=ROWS * 5), held_out=0.2)
    assert (len(task.train), len(task.dev)) == (16, 4)


def test_tags_and_scores(tmp_path: Path) -> None:
    tags = {"text": List(Value("string")), "label": List(ClassLabel(names=["O", "B-X", "I-X"]))}
    rows = [(["a", "b"], [0, 1]), (["c"], [2])]
    task = load(save(tmp_path / "tags", Features(tags), train=rows, validation=rows), kind="tags")
    assert (task.info.labels, task.info.metric) == (("O", "B-X", "I-X"), "f1")
    assert [row.tolist() for row in task.train.labels] == [[0, 1], [2]]
    scores = Features({"text": Value("string"), "label": Value("float32")})
    rows = [("a", 0.5), ("b", 1.5)]
    task = load(save(tmp_path / "scores", scores, train=rows, validation=rows), kind="score")
    assert task.train.labels.tolist() == [0.5, 1.5]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"train": "set:none"}, "task.train = 'set:none': no split 'none'; it has train, test"),
        ({"train": "test"}, "task.train = 'test': no split 'train'; name one, as in 'test:SPLIT'"),
        ({"train": "set", "dev": "set:none"}, "task.dev = 'set:none': no split 'none'; it has "),
        ({"train": "set", "text": "words"}, "set:train: no column 'words'"),
        ({"train": "set:test"}, "set:test row 1: column 'label' is empty"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "set", train=ROWS, test=[("hidden", -1), ("hidden", -1)])
    save(tmp_path / "test", test=ROWS)
    with pytest.raises(UserError) as caught:
        load(**keys)
    assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)


def test_a_changed_folder_is_read_again(tmp_path: Path) -> None:
    """Also if only the bytes changed, which the cache of datasets would not see."""
    folder = save(tmp_path / "set", train=[("one", 0), ("two", 1)] * 9)
    (file,) = folder.iterdir()
    experiment = Experiment.load("", ["task.name=custom", f"task.train={folder}", "backbone=tiny"])
    assert local_files(experiment.task) == (file,)
    before, status = runtime_of(experiment), file.stat()
    assert set(before.task.train.text) == {"one", "two"}
    save(folder, train=[("six", 0), ("ten", 1)] * 9)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert set(runtime_of(experiment).task.train.text) == {"six", "ten"}


def test_names_of_data_sets_and_of_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").touch()
    base = str(tmp_path)
    assert source_of("task.train", "user/some-set", base) == Source("task.train", "user/some-set")
    whole = Source("task.train", "user/set", "config", "test")
    assert source_of("task.train", "user/set/config:test", base) == whole
    assert str(whole) == "user/set/config:test"
    folder = Source("task.train", str(tmp_path / "here"), split="test")
    assert source_of("task.train", "here:test", base) == folder
    (tmp_path / "here:there").touch()
    files = (
        "here:there",
        "",
        "data/reviews.csv",
        "reviews.csv",
        "missing",
        "/none/a.jsonl",
        "a/b/file",
        "x/y/z/w",
    )
    assert all(source_of("task.train", name, base) is None for name in files)


def test_a_task_without_a_file_has_none_also_where_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the server of a deployment, whose current folder holds files that change."""
    (tmp_path / "log").write_text("changes all the time")
    monkeypatch.chdir(tmp_path)
    assert local_files(TaskSection(name="custom")) == ()
