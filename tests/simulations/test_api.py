"""Simulations from Python."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedpeft
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.planning import planned
from fedpeft.vectorfile import vector_digest
from simulations.results import new_folder

Quick = Callable[..., Experiment]


def test_a_result_has_the_content_of_the_run_files(quick: Quick, tmp_path: Path) -> None:
    result = fedpeft.simulate(quick("federation.rounds=3", "output.eval_every=2"), tmp_path / "run")
    result_file = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result.result == result_file
    assert (result.score, result.metrics, result.privacy) == (
        result_file["score"],
        result_file["metrics"],
        None,
    )
    assert result.experiment.digest == result_file["digests"]["experiment"]
    assert result.vector.shape == (result_file["vector_size"],)
    assert vector_digest(result.vector) == result_file["digests"]["vector"]
    rounds = result.rounds
    assert rounds["round"].tolist() == [1, 2, 3]
    assert rounds["score"].isna().tolist() == [True, False, False]
    assert rounds["score"].iloc[-1] == rounds["metric.accuracy"].iloc[-1] == result_file["score"]
    assert rounds["sent_up_message"].iloc[-1] == result_file["bytes"]["up"]["message"]
    assert (rounds["seconds"] > 0).all()
    trained = result.bytes[result.bytes["kind"] == "train"]
    assert trained.groupby("round")["up_payload"].sum().tolist() == rounds["up_payload"].tolist()
    assert repr(result) == (
        f"Result(synthetic/sentiment, slash: accuracy {result_file['score']:.4f} after 3 rounds, "
        f"'{tmp_path / 'run'}')"
    )
    assert [axis.get_ylabel() for axis in result.plot().axes][::2] == ["accuracy", "training loss"]


def test_an_experiment_is_also_a_file_or_a_tree(quick: Quick, tmp_path: Path) -> None:
    whole = planned(quick())
    file = tmp_path / "own.toml"
    file.write_text(whole.to_toml())
    tree = whole.model_dump()
    dotted = {
        f"{section}.{key}": value
        for section, values in tree.items()
        if isinstance(values, dict)
        for key, value in values.items()
    } | {key: tree[key] for key in ("backbone", "representation", "seed")}
    made = {"file": file, "text": str(file), "tree": tree, "dotted": dotted, "object": whole}
    found = {
        name: fedpeft.simulate(each, tmp_path / name, ["federation.rounds=1", "seed=3"])
        for name, each in made.items()
    }
    assert {result.experiment.digest for result in found.values()} == {
        planned(quick("federation.rounds=1", "seed=3")).digest
    }
    vectors = [result.vector for result in found.values()]
    assert all(np.array_equal(vector, vectors[0]) for vector in vectors)
    assert tree == whole.model_dump()  # what was given stays as it was


def test_another_method_uses_the_defaults_of_that_method(quick: Quick, tmp_path: Path) -> None:
    short = ["federation.rounds=1", "method.name=linear"]
    result = fedpeft.simulate(quick(), tmp_path / "run", short)
    assert result.experiment.local.lr == Experiment.load("", ["method.name=linear"]).local.lr
    assert result.experiment.local.lr != quick().local.lr


def rows_file(file: Path, classes: str, count: int) -> None:
    """Write a table of so many rows, whose labels take turns."""
    rows = (f"text number {row},{classes[row % len(classes)]}" for row in range(count))
    file.write_text("\n".join(["text,label", *rows]) + "\n")


def test_a_replaced_file_is_read_again_in_the_same_process(quick: Quick, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    custom = quick("task.name=custom", f"task.train={file}", "task.train_limit=0")
    custom = Experiment.load(custom.to_toml(), ["federation.rounds=1", "task.eval_limit=0"])
    sizes = {}
    for name, classes, count in (("old", "ab", 60), ("new", "abc", 200), ("again", "ab", 60)):
        rows_file(file, classes, count)
        result = fedpeft.simulate(custom, tmp_path / name)
        partition = json.loads((tmp_path / name / "partition.json").read_text())
        sizes[name] = sum(len(rows) for rows in partition["clients"])
        assert result.result["head_size"] == len(classes) * 32 + len(classes)
    assert sizes == {"old": 54, "new": 180, "again": 54}
    vectors = [fedpeft.simulate(custom, tmp_path / n, resume=True).vector for n in ("old", "again")]
    assert np.array_equal(*vectors)


def reviews(count: int) -> pd.DataFrame:
    """Return reviews of two moods, with categories and names of rows that must not matter."""
    moods = [("good", "fine"), ("bad", "awful")]
    rows = [(f"the soup {n} was {moods[n % 2][1]}", moods[n % 2][0]) for n in range(count)]
    frame = pd.DataFrame(rows, columns=["review", "mood"], index=range(100, 100 + count))
    return frame.astype({"mood": "category"})


def test_data_frames_are_the_data_of_a_run(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = quick("task.text=review", "task.label=mood", "federation.rounds=1")
    train, dev = reviews(40), reviews(6)
    result = fedpeft.simulate(settings, tmp_path / "one", train=train, dev=dev)
    assert result.experiment.task.name == "custom"
    assert result.result["metrics"]["accuracy"] == result.score
    # The same as from files, and from another folder.
    for name, frame in (("train", train), ("dev", dev)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    files = [f"task.{name}={tmp_path / name}.csv" for name in ("train", "dev")]
    same = fedpeft.simulate(settings, tmp_path / "two", ["task.name=custom", *files])
    assert np.array_equal(result.vector, same.vector)
    monkeypatch.chdir(tmp_path / "two")
    again = fedpeft.simulate(settings, tmp_path / "one", resume=True, train=train, dev=dev)
    assert again.result == result.result
    with pytest.raises(UserError, match=r"holds a run of other settings: task.train"):
        fedpeft.simulate(settings, tmp_path / "one", resume=True, train=train[:20], dev=dev)
    assert len([*(tmp_path / "frames").iterdir()]) == 2
    alone = fedpeft.simulate(settings, tmp_path / "alone", train=train)
    assert alone.experiment.task.dev == ""


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ({"dev": reviews(4)}, "dev is a data frame: give train, too"),
        ({"train": reviews(0)}, "train: has no rows"),
        ({"train": reviews(9).rename(columns={"mood": "review"})}, "train: two columns have the"),
        ({"train": pd.DataFrame({"text": ["a", 1]})}, "train: is no table: "),
        ({"train": pd.DataFrame({"words": ["a", "b"]})}, "no column 'text'"),
    ],
)
def test_frames_that_are_no_data_are_one_line(
    quick: Quick, tmp_path: Path, frames: dict[str, pd.DataFrame], expected: str
) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        fedpeft.simulate(quick(), tmp_path / "run", **frames)
    assert "\n" not in str(caught.value)
    assert not [*tmp_path.rglob("*.parquet")] and not (tmp_path / "run").exists()


def test_a_result_predicts_and_exports(quick: Quick, tmp_path: Path) -> None:
    settings = quick("task.text=review", "task.label=mood", "federation.rounds=1")
    result = fedpeft.simulate(settings, tmp_path / "run", train=reviews(40))
    new = reviews(6)[["review"]]
    predicted = result.predict(new)
    assert predicted.index.equals(new.index)
    assert predicted.columns.tolist() == ["prediction", "p(bad)", "p(good)"]
    assert predicted[["p(bad)", "p(good)"]].sum(axis=1).tolist() == pytest.approx([1] * 6)
    new.to_csv(tmp_path / "new.csv", index=False)
    for same in (result.predict([*new["review"]]), result.predict(tmp_path / "new.csv")):
        pd.testing.assert_frame_equal(same, predicted.reset_index(drop=True))
    renamed = result.predict(new.rename(columns={"review": "words"}), text="words")
    pd.testing.assert_frame_equal(renamed, predicted)
    long = pd.DataFrame({"review": ["good " * 600, "bad"]})
    with pytest.warns(UserWarning, match=r"cut at task.max_length = \d+ tokens: 1 of 2 texts"):
        assert len(result.predict(long)) == 2
    mixed = pd.DataFrame({"review": new["review"], "other": [1, "z", None, 2.5, "a", b"b"]})
    pd.testing.assert_frame_equal(result.predict(mixed), predicted)
    with pytest.raises(UserError, match="the data frame: no column 'review'"):
        result.predict(pd.DataFrame({"other": ["a"]}))
    vector = result.export("vector")
    assert vector.parent == result.folder
    assert np.array_equal(fedpeft.Trained.read(vector).vector, result.vector)
    folder = result.export("hf", tmp_path / "model")
    assert folder == tmp_path / "model" and (folder / "model.safetensors").exists()
    with pytest.raises(UserError, match="exists already"):
        result.export("vector")


def test_the_package_shows_its_interface() -> None:
    assert set(fedpeft.__all__) <= set(dir(fedpeft))
    assert all(getattr(fedpeft, name) is not None for name in fedpeft.__all__)
    code = "import sys, fedpeft; dir(fedpeft); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'simulte'"):
        _ = fedpeft.simulte  # type: ignore[attr-defined]


def test_a_finished_run_is_read_again(quick: Quick, tmp_path: Path) -> None:
    first = fedpeft.simulate(quick(), tmp_path / "run")
    again = fedpeft.simulate(quick(), str(tmp_path / "run"), resume=True)
    pd.testing.assert_frame_equal(first.rounds, again.rounds)
    assert again.result == first.result
    with pytest.raises(UserError, match="holds this run, finished"):
        fedpeft.simulate(quick(), tmp_path / "run")
    with pytest.raises(UserError, match="nothing to resume"):
        fedpeft.simulate(quick(), tmp_path / "none", resume=True)
    with pytest.raises(UserError, match="resume=True needs out"):
        fedpeft.simulate(quick(), resume=True)


def test_without_a_folder_every_run_gets_a_new_one(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [fedpeft.simulate(quick("federation.rounds=1")).folder for _ in range(3)]
    assert len(set(folders)) == 3
    assert all(folder.parent == Path("runs") for folder in folders)
    assert all(folder.name.startswith("synthetic-sentiment-slash-") for folder in folders)


def test_processes_that_start_at_once_get_different_folders(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "from simulations.results import new_folder, Experiment\n"
        "experiment = Experiment.load()\n"
        "input()\n"
        "for _ in range(20): print(new_folder(experiment))"
    )
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as other:
        for process in (one, other):
            process.stdin.write("\n")
            process.stdin.flush()
        folders = [*one.stdout.read().split(), *other.stdout.read().split()]
    assert len(folders) == len({*folders}) == 40
    assert {Path(folder).name for folder in folders} == {
        each.name for each in Path("runs").iterdir()
    }


def test_a_folder_that_cannot_be_created_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to("nowhere")
    with pytest.raises(
        UserError, match=r"^'runs/.*' cannot be created \(File exists\); set --out$"
    ):
        new_folder(Experiment.load())


def test_a_private_result_has_its_privacy_statement(quick: Quick, tmp_path: Path) -> None:
    privacy = ["privacy.unit=example", "privacy.epsilon=8", "federation.rounds=1"]
    result = fedpeft.simulate(quick(*privacy), tmp_path / "run")
    assert result.privacy is not None
    assert 0 < result.privacy["example"]["epsilon"] <= 8
    assert result.rounds["epsilon"].iloc[-1] == pytest.approx(result.privacy["example"]["epsilon"])
    assert result.plot().axes[2].get_ylabel() == "epsilon"


@pytest.mark.parametrize(
    ("given", "overrides", "said"),
    [
        ({"metod.d": 3}, (), "unknown key 'metod'"),
        ({"backbone": "tiny", "method.d": 0}, (), "method.d = 0: expected"),
        ({}, ["local.lr"], "-s local.lr: expected key=value"),
        ("none.toml", (), "no experiment file 'none.toml'"),
    ],
)
def test_mistakes_are_named(given: object, overrides: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        fedpeft.simulate(given, tmp_path / "run", overrides)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedpeft\n"
        "assert fedpeft.__version__\n"
        "heavy = {'torch', 'flwr', 'pandas', 'numpy', 'pydantic', 'simulations'}\n"
        "print(heavy & set(sys.modules))\n"
        "fedpeft.Experiment.load('')\n"
        "print({'flwr', 'pandas', 'simulations'} & set(sys.modules))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["set()", "set()"]


def test_an_unknown_attribute_of_the_package_is_an_error() -> None:
    with pytest.raises(AttributeError, match="module 'fedpeft' has no attribute 'simulat'"):
        _ = fedpeft.simulat
