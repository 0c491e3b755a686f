"""What an experiment needs in a process, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.runtime import COMMON, Runtime, runtime_of


def custom(*more: str) -> Experiment:
    return Experiment.load("", ["task.name=custom", "task.labels=no,yes", *more])


def test_the_plan_needs_neither_weights_nor_data() -> None:
    """A roberta-large is not on any machine that runs the tests, nor are this task's files."""
    runtime = Runtime(custom("backbone=roberta-large"))
    assert set(runtime.plan) == set(COMMON) - {"backbone"}
    assert runtime.info.labels == ("no", "yes")
    assert runtime.trainable.layout.head_size == 2 * 1024 + 2
    assert len(runtime.trainable.initial(0)) == runtime.trainable.layout.size
    with pytest.raises(UserError, match=r"task.train is empty"):
        _ = runtime.task


def test_labels_that_stand_only_in_the_data_are_read_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,b\ny,a\nz,b\n")
    own = Experiment.load("", ["backbone=tiny", "method.d=8", "task.name=custom"]).task
    files = own.model_copy(update={"train": str(tmp_path / "a.csv")})
    runtime = Runtime(Experiment.load("", ["task.name=custom", "backbone=tiny"]), files)
    assert runtime.info.labels == ("a", "b")


def test_a_nodes_own_files_change_neither_digest_nor_plan(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,no\ny,yes\nz,no\n")
    experiment = custom("backbone=tiny", "method.d=8")
    files = experiment.task.model_copy(update={"train": str(tmp_path / "a.csv")})
    server, node = runtime_of(experiment.to_toml()), runtime_of(experiment.to_toml(), files)
    assert node is runtime_of(experiment.to_toml(), files) and node is not server
    assert node.plan == server.plan and node.digest == experiment.digest
    assert len(node.task.train) == 2 and len(node.task.dev) == 1
    assert node.identity == {**server.plan, "backbone": node.backbone.fingerprint}
