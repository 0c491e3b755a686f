"""What a resumed run must find as it was: data, partition, settings, and the folder to itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from server.runfolder import RunFolder
from simulations.simulation import prepare, simulate

Quick = Callable[..., Experiment]


@pytest.fixture
def custom(quick: Quick, tmp_path: Path) -> Experiment:
    """A task in files of its own, so that they can change."""
    rows = [f"some text number {i}\t{'good' if i % 3 else 'bad'}" for i in range(40)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    files = [f"task.{name}={tmp_path / name}.tsv" for name in ("train", "dev")]
    return quick("task.name=custom", *files, "task.train_limit=0", "task.eval_limit=0")


@pytest.mark.parametrize(("change", "named"), [("drop a row", "data"), ("edit a text", "data")])
def test_changed_data_is_not_mixed_with_the_old(
    custom: Experiment, tmp_path: Path, change: str, named: str
) -> None:
    folder, _ = prepare(custom, tmp_path / "run")
    simulate(folder, custom)
    before = (folder.path / "partition.json").read_bytes()
    path = tmp_path / "train.tsv"
    lines = path.read_text().splitlines()
    lines = lines[:-1] if change == "drop a row" else [lines[0], "other words\tbad", *lines[2:]]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=f"begun with other {named}"):
        prepare(Experiment.read(folder.path / "experiment.toml"), folder.path, resume=True)
    assert (folder.path / "partition.json").read_bytes() == before


def test_a_file_that_changes_during_a_run_does_not_change_the_run(
    custom: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [prepare(custom, tmp_path / name)[0] for name in ("kept", "changed", "late")]
    simulate(folders[0], custom)
    path, save = tmp_path / "train.tsv", RunFolder.save_round

    def changing(folder: RunFolder, *line: Any, **more: Any) -> None:
        save(folder, *line, **more)
        path.write_text("text\tlabel\n" + "other words\tbad\nmore\tgood\n" * 30)

    monkeypatch.setattr(RunFolder, "save_round", changing)
    simulate(folders[1], custom)
    vectors = [(folder.path / "vector.safetensors").read_bytes() for folder in folders[:2]]
    assert vectors[0] == vectors[1]
    with pytest.raises(UserError, match="begun with other data"):
        simulate(folders[2], custom)  # the file changed between preparation and begin


def test_a_checkpoint_of_another_experiment_names_the_keys(quick: Quick, tmp_path: Path) -> None:
    folders = []
    for name, seed in (("one", 0), ("other", 7)):
        experiment = quick(f"seed={seed}", "federation.rounds=1")
        folder, _ = prepare(experiment, tmp_path / name)
        simulate(folder, experiment)
        folders.append(folder)
    name = "checkpoint.safetensors"
    shutil.copy(folders[1].path / name, folders[0].path / name)
    with pytest.raises(UserError, match=r"of another experiment: seed \(7 and 0\)"):
        folders[0].checkpoint()


def test_settings_that_only_decide_when_a_run_stops_may_change(
    quick: Quick, tmp_path: Path
) -> None:
    prepare(quick(), tmp_path / "run")
    prepare(quick("federation.timeout=9", "output.plots=true"), tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"local.lr \(0.005 and 0.5\)"):
        prepare(quick("local.lr=0.5"), tmp_path / "run", resume=True)


def test_a_folder_is_used_by_one_process_at_a_time(quick: Quick, tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", quick())
    refused = pytest.raises(UserError, match="in use by another process")
    with folder.locked(), refused, RunFolder(folder.path).locked():
        pytest.fail("two have the lock")
    with RunFolder(folder.path).locked():
        assert (folder.path / "run.lock").exists()


def test_equal_runs_write_equal_vector_files(quick: Quick, tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        folder, _ = prepare(quick(), tmp_path / name)
        simulate(folder, quick())
        files.append((folder.path / "vector.safetensors").read_bytes())
    assert files[0] == files[1]
