"""Reading a finished run: the same model as while it ran, and every misfit by its name."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finished import finished_run, made_up, method, small
from models import METHODS, SMALL
from safetensors.numpy import save_file

from fedpeft.errors import UserError
from fedpeft.runs.folder import RunFolder
from fedpeft.runs.trained import Trained
from fedpeft.runs.vectorfile import read_vector, vector_bytes
from fedpeft.runtime import Runtime
from fedpeft.tasks.metrics import scores
from fedpeft.training import evaluate

SLASH = method("slash", SMALL["slash"])
Change = Callable[[np.ndarray, dict[str, Any]], tuple[np.ndarray, dict[str, Any]]]


def changed(path: Path, change: Change) -> Path:
    """Return a copy of a finished run's file with something changed in it."""
    vector, about = read_vector(finished_run(*SLASH) / "vector.safetensors")
    path.write_bytes(vector_bytes(*change(vector.copy(), about)))
    return path


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_run_has_the_score_of_its_result(name: str) -> None:
    folder = finished_run(*method(name, SMALL[name]))
    trained = Trained.read(folder)
    scored = evaluate(trained.model, trained.vector, Runtime(trained.experiment).dev)
    expected = json.loads((folder / "result.json").read_text())["metrics"]
    assert scores(scored.statistics, trained.kind) == expected
    last = RunFolder(folder).checkpoint()
    assert last is not None and trained.vector.tolist() == last.vector.tolist()


@pytest.mark.parametrize(
    ("task", "kind", "pair", "labels"),
    [
        ("synthetic/inference", "classes", True, ("entailment", "neutral", "contradiction")),
        ("synthetic/similarity", "score", True, ()),
        ("synthetic/sentiment", "classes", False, ("negative", "positive")),
    ],
)
def test_the_vector_file_describes_the_prediction(
    task: str, kind: str, pair: bool, labels: tuple[str, ...]
) -> None:
    folder = finished_run(f"task.name={task}", *SLASH)
    for path in (folder, folder / "vector.safetensors"):
        trained = Trained.read(path)
        assert (trained.kind, trained.pair, trained.labels) == (kind, pair, labels)
        assert trained.about["seed"] == trained.experiment.seed == 0
        assert trained.reads == "mask"


def test_loading_a_run_needs_no_data(tmp_path: Path) -> None:
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\ngood film\tyes\nbad film\tno\nfine film\tyes\ndull film\tno\n")
    custom = [f"task.{key}={data}" for key in ("train", "dev")]
    path = made_up(tmp_path / "vector", small("task.name=custom", *custom, *SLASH))
    data.unlink()
    assert Trained.read(path).labels == ("no", "yes")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the other's device")
def test_a_vector_trained_on_cuda_is_read_on_a_cpu(tmp_path: Path) -> None:
    def elsewhere(vector: np.ndarray, about: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        settings = about["experiment"].replace('device = "cpu"', 'device = "cuda"')
        assert settings != about["experiment"]
        return vector, {**about, "experiment": settings}

    trained = Trained.read(changed(tmp_path / "vector", elsewhere))
    assert trained.model.backbone.device.type != "cuda"


def test_another_version_with_the_same_digests_is_accepted(tmp_path: Path) -> None:
    def older(vector: np.ndarray, about: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        return vector, {**about, "digests": {**about["digests"], "version": "0.0.1"}}

    assert Trained.read(changed(tmp_path / "vector", older)).labels


def with_digest(name: str) -> Change:
    return lambda vector, about: (vector, {**about, "digests": {**about["digests"], name: "0"}})


def with_about(**values: object) -> Change:
    return lambda vector, about: (vector, {**about, **values})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_digest("backbone"), "was trained on another backbone than this machine's 'tiny'"),
        (with_digest("projection"), "was trained with other projections than those of seed 0"),
        (
            lambda vector, about: (
                vector,
                {**about, "experiment": about["experiment"].replace("seed = 0", "seed = 1")},
            ),
            "was trained with other projections than those of seed 1",
        ),
        (
            lambda vector, about: (
                vector,
                {
                    **about,
                    "parameters": [["z", [9]], *about["parameters"][1:]],
                    "digests": {**about["digests"], "layout": "0"},
                },
            ),
            r"another layout than method 'slash' with 2 outputs .* for example 'z' \(9,\)",
        ),
        (lambda vector, about: (vector[:-1], about), "vector has 308 bytes, expected 312"),
        (lambda vector, about: (vector * np.nan, about), "78 of 78 numbers are NaN or infinite"),
        (with_about(kind="nonsense"), "its metadata has no valid kind 'nonsense'"),
        (with_about(parameters=None), "its metadata has no valid"),
        (with_about(labels=[1, 2]), "its metadata has no valid"),
        (with_about(digests={}), "its metadata has no valid 'backbone'"),
        (lambda vector, about: (vector, {}), "its metadata has no valid 'experiment'"),
        (with_about(experiment="x = 1"), "its experiment is invalid here: unknown key 'x'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: Change, words: str) -> None:
    path = changed(tmp_path / "vector", change)
    with pytest.raises(UserError, match=words) as caught:
        Trained.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_are_not_vectors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(pickle.dumps({"vector": [1.0]}))
    (tmp_path / "empty").write_bytes(b"")
    save_file({"vector": np.zeros(3)}, tmp_path / "bare")
    save_file({"weights": np.zeros(3)}, tmp_path / "model", {"fedpeft": "{}"})
    save_file({"vector": np.zeros(3)}, tmp_path / "list", {"fedpeft": "[]"})
    for path in tmp_path.iterdir():
        with pytest.raises(UserError, match="is not a fedpeft vector"):
            Trained.read(path)


def test_folders_without_a_finished_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder or vector file"):
        Trained.read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="contains no run"):
        Trained.read(tmp_path)
    (tmp_path / "experiment.toml").write_text("")
    with pytest.raises(
        UserError,
        match=r"not finished, or its vector.safetensors is missing; `fedpeft .* --resume`",
    ):
        Trained.read(tmp_path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (["seed=3"], r"seed \(3 and 0\)"),
        (["method.name=jr_warp", "method.d=12"], r"method.name \(jr_warp and slash\)"),
        (["method.name=slash", "method.d=11"], r"method.d \(11 and 12\)"),
        ([*SLASH, "task.name=synthetic/inference"], "task.name"),
    ],
)
def test_a_vector_of_another_run_is_refused(tmp_path: Path, other: list[str], words: str) -> None:
    chosen = other if any("method" in each for each in other) else [*SLASH, *other]
    folder = shutil.copytree(finished_run(*SLASH), tmp_path / "run")
    made_up(folder / "vector.safetensors", small(*chosen))
    with pytest.raises(UserError, match=words) as caught:
        Trained.read(folder)
    assert "belongs to another run" in str(caught.value)


def test_changed_numbers_are_noticed(tmp_path: Path) -> None:
    content = bytearray((finished_run(*SLASH) / "vector.safetensors").read_bytes())
    content[-3] ^= 1  # in the last number
    path = tmp_path / "vector.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match="its numbers differ from those that were written"):
        read_vector(path)
