"""What a frozen backbone scores with all data in one place, against scikit-learn by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr
from seqeval.metrics import f1_score
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpeft.cli import main
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.starting import Read, read_by
from server.runfolder import RunFolder
from simulations.frozen import lines_of
from simulations.frozen_scores import measure, scores

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
MANY = 50_000
LIMITS = ("task.train_limit=150", "task.eval_limit=80")


def alone(runtime: Runtime, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return representations and labels, one text at a time through the backbone as it is."""
    data = runtime.train if split == "train" else runtime.dev
    batches = (runtime.model.collate([data], [np.array([row])]) for row in range(len(data.lengths)))
    rows = [runtime.model.representations([], batch)[0].detach().numpy() for batch in batches]
    if runtime.info.kind != "tags":
        return np.stack(rows), data.labels
    return np.concatenate(rows), data.labels


def test_classes_have_logistic_regression(quick: Quick) -> None:
    experiment = quick("backbone=minilm", "representation=unit", *LIMITS)
    runtime = runtime_of(experiment)
    (x, y), (new, labels) = alone(runtime, "train"), alone(runtime, "dev")
    order = np.random.default_rng(0).permutation(len(y))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, tol=1e-6))
    choices = {"logisticregression__C": np.logspace(-3, 0, 7)}
    search = GridSearchCV(model, choices, cv=KFold(3)).fit(x[order], y[order])
    (line,) = scores(experiment, MANY)
    assert line["name"] == "logistic regression"
    assert line["score"] == pytest.approx(accuracy_score(labels, search.predict(new)), abs=0.02)
    assert line["score"] > 0.8


def test_scores_have_ridge_regression(quick: Quick) -> None:
    experiment = quick("task.name=synthetic/similarity", *LIMITS)
    (x, y), (new, labels) = (alone(runtime_of(experiment), split) for split in ("train", "dev"))
    model = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 5, 29))).fit(x, y)
    (line,) = scores(experiment, MANY)
    assert line["name"] == "ridge regression"
    assert line["score"] == pytest.approx(pearsonr(model.predict(new), labels)[0], abs=1e-5)


def test_words_that_were_cut_are_missed_by_the_frozen_backbone(quick: Quick) -> None:
    """What is read comes in another order than the texts."""
    runtime = runtime_of(quick("task.name=synthetic/entities", "task.max_length=16", *LIMITS))
    read = Read.joined([*read_by(runtime.model, runtime.parameters.initial_shared(0), runtime.dev)])
    assert sorted(read.order) == [*range(80)] != read.order.tolist()
    for row, tags in zip(
        read.order, np.split(read.labels, np.cumsum(read.counts)[:-1]), strict=True
    ):
        unread = runtime.dev.cut.words[row][:, 1].tolist()
        assert [*tags, *unread] == runtime.task.dev.labels[row].tolist()


def test_the_frozen_backbone_is_scored_on_the_words_that_are_cut(quick: Quick) -> None:
    experiment = quick("task.name=synthetic/entities", "task.max_length=8", *LIMITS)
    runtime = runtime_of(experiment)
    (x, y), (new, labels) = alone(runtime, "train"), alone(runtime, "dev")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, C=1.0))
    found = iter(model.fit(x[y >= 0], y[y >= 0]).predict(new[labels >= 0]))
    names, gold, predicted = runtime.info.labels, [], []
    for row, tags in enumerate(runtime.task.dev.labels):
        read = len(tags) - len(runtime.dev.cut.words[row])
        gold.append([names[tag] for tag in tags])
        predicted.append([names[next(found)] if at < read else "O" for at in range(len(tags))])
    (line,) = scores(experiment, MANY)
    assert line["score"] == pytest.approx(f1_score(gold, predicted), abs=0.03)


def test_tags_are_those_of_every_word(quick: Quick) -> None:
    experiment = quick("task.name=synthetic/entities", *LIMITS)
    runtime = runtime_of(experiment)
    (x, y), (new, labels) = alone(runtime, "train"), alone(runtime, "dev")
    words, tagged = y >= 0, labels >= 0
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, C=1.0))
    found = model.fit(x[words], y[words]).predict(new[tagged])
    names, counts = np.array(runtime.info.labels), np.add.reduceat(tagged, runtime.dev.offsets[:-1])
    cuts = np.cumsum(counts)[:-1]
    gold, predicted = (
        [text.tolist() for text in np.split(names[each], cuts)] for each in (labels[tagged], found)
    )
    (line,) = scores(experiment, MANY)
    assert line["name"] == "logistic regression"
    assert line["score"] == pytest.approx(f1_score(gold, predicted), abs=0.1)


def test_pairs_have_their_cosine_too(quick: Quick) -> None:
    settings = ("backbone=minilm", "task.name=synthetic/similarity")
    limits = ("task.train_limit=60", "task.eval_limit=40")
    experiment = quick(*settings, *limits)
    lines = scores(experiment, MANY)
    assert [line["name"] for line in lines] == [
        "ridge regression",
        "ridge regression on the cosine",
    ]
    apart = quick(*settings, *limits, "representation=unit", "task.pairs=apart")
    read, labels = alone(runtime_of(apart), "dev")
    cosines = read[:, :384].mean(1)
    assert lines[1]["score"] == pytest.approx(abs(pearsonr(cosines, labels)[0]), abs=1e-5)


def test_one_class_is_predicted(quick: Quick, tmp_path: Path) -> None:
    file = tmp_path / "one.csv"
    file.write_text("text,label\n" + "good,a\n" * 5)
    custom = ("task.name=custom", f"task.train={file}", f"task.dev={file}", "task.labels=a,b")
    (line,) = scores(quick(*custom), MANY)
    assert line["score"] == 1.0


def test_a_report_measures_once_and_shows_the_lines(
    quick: Quick, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = run(quick("federation.rounds=1", *LIMITS))
    main(["report", str(folder.path), "--no-frozen"])
    assert not lines_of(folder.path) and not capsys.readouterr().err
    main(["report", str(folder.path)])
    assert capsys.readouterr().err == f"{folder.path}: measuring the frozen backbone\n"
    (line,) = lines_of(folder.path)
    page = (folder.path / "report.html").read_text()
    assert json.dumps(line["score"]) in page and '"name": "logistic regression"' in page
    main(["report", str(folder.path)])
    assert not capsys.readouterr().err


def test_private_runs_have_no_line(quick: Quick, run: Run) -> None:
    private = ("privacy.unit=example", "privacy.noise_multiplier=1", "federation.rounds=1")
    folder, _ = run(quick(*private, *LIMITS))
    main(["report", str(folder.path)])
    assert not lines_of(folder.path)


def test_what_cannot_be_measured_is_said(
    quick: Quick, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data.csv"
    file.write_text("text,label\n" + "good,a\nbad,b\n" * 20)
    folder, _ = run(quick("task.name=custom", f"task.train={file}", "federation.rounds=1"))
    file.unlink()
    main(["report", str(folder.path)])
    assert "the frozen backbone is not measured: " in capsys.readouterr().err
    assert (folder.path / "report.html").exists()


def test_a_report_that_cannot_be_written_measures_nothing(
    quick: Quick, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = run(quick("federation.rounds=1", *LIMITS))
    for arguments in ([str(folder.path)] * 2, [str(folder.path), "--out", str(tmp_path)]):
        with pytest.raises(SystemExit):
            main(["report", *arguments])
        assert "measuring" not in capsys.readouterr().err
    assert not lines_of(folder.path)


def test_a_damaged_run_keeps_no_other_from_its_line(
    quick: Quick, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = run(quick("federation.rounds=1", *LIMITS))
    damaged = tmp_path / "damaged"
    shutil.copytree(folder.path, damaged)
    (damaged / "experiment.toml").write_text("seed = 'none'")
    measure([damaged, folder.path], MANY, print)
    assert f"{damaged}: the frozen backbone is not measured: " in capsys.readouterr().out
    assert lines_of(folder.path) and not lines_of(damaged)


def test_equal_data_are_measured_once_also_by_a_later_report(
    quick: Quick, run: Run, tmp_path: Path
) -> None:
    """Methods, partitions, ways to read and seeds of equal data share one measurement."""
    few = ("federation.rounds=1", "task.train_limit=0", "task.eval_limit=0")
    file = tmp_path / "data.csv"
    file.write_text("text,label\n" + "good thing,a\nbad thing,b\n" * 20)
    custom = ("task.name=custom", f"task.train={file}", f"task.dev={file}", *few)
    changes = ((), ("wire.up=float16",), ("seed=3",), ("representation=mask",))
    runs = [run(quick(*custom, *c), f"run-{n}")[0].path for n, c in enumerate(changes)]
    said: list[str] = []
    measure(runs[:2], MANY, said.append)
    assert said == [f"{runs[0]}: measuring the frozen backbone"]
    measure(runs, MANY, said.append)
    assert len(said) == 1
    assert all(lines_of(path) == scores(quick(*custom), MANY) for path in runs)
    other = run(quick(*custom, "task.train_limit=30"), "other")[0].path
    measure([*runs, other], MANY, said.append)
    assert said[1:] == [f"{other}: measuring the frozen backbone"]


def test_changed_data_are_not_those_of_the_run(
    quick: Quick, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data.csv"
    file.write_text("text,label\n" + "good,a\nbad,b\n" * 20)
    folder, _ = run(quick("task.name=custom", f"task.train={file}", "federation.rounds=1"))
    file.write_text("text,label\n" + "good,a\nbad,b\n" * 30)
    measure([folder.path], MANY, print)
    assert "the task's files have changed since the run" in capsys.readouterr().out
    assert not lines_of(folder.path)
