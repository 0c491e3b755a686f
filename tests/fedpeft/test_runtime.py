"""What an experiment needs in a process, and what it does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from fedpeft.backbones.loading import load_backbone
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment, parsed
from fedpeft.methods import REGISTRY
from fedpeft.projection import Projection
from fedpeft.runtime import COMMON, Runtime, content_of, forget_runtimes, runtime_of


def custom(*more: str) -> Experiment:
    return Experiment.load("", ["task.name=custom", "task.labels=no,yes", *more])


def test_the_plan_needs_neither_weights_nor_data() -> None:
    """A roberta-large is not on any machine that runs the tests, nor are this task's files."""
    runtime = Runtime(custom("backbone=roberta-large"))
    assert set(runtime.plan) == set(COMMON) - {"backbone"}
    assert runtime.info.labels == ("no", "yes")
    assert runtime.parameters.layout.head_size == 2 * 1024 + 2
    assert len(runtime.parameters.initial(0)) == runtime.parameters.layout.size
    with pytest.raises(UserError, match=r"task.train is empty"):
        _ = runtime.task


@pytest.mark.parametrize("name", REGISTRY)
def test_sizes_are_known_before_anything_of_that_size_exists(name: str) -> None:
    small = {"slash": "d=32", "jr_warp": "d=32", "compacter": "reduction=4"}.get(name)
    keys = ["backbone=tiny", f"method.name={name}", "head.d=4", "representation=mask"]
    keys += [f"method.{small}"] if small else []
    runtime = Runtime(custom(*keys))
    streams = [*runtime.parameters.method.projections(), *runtime.parameters.head.projections()]
    dense = [stream for stream in streams if isinstance(stream, Projection)]
    assert runtime.vector_size == len(runtime.parameters.initial(0))
    stored = sum(projection.transposed().size for projection in dense)
    others = sum(stream.rows for stream in streams if stream not in dense)
    assert runtime.projected == stored + others > 0
    assert Runtime(custom(*keys, "engine.projections=regenerated")).projected == others


def test_labels_missing_in_the_settings_are_read_from_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,b\ny,a\nz,b\n")
    section = Experiment.load("", ["backbone=tiny", "method.d=8", "task.name=custom"]).task
    files = section.model_copy(update={"train": str(tmp_path / "a.csv")})
    runtime = Runtime(Experiment.load("", ["task.name=custom", "backbone=tiny"]), files)
    assert runtime.info.labels == ("a", "b")


def test_the_files_of_a_node_change_neither_digest_nor_plan(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nx,no\ny,yes\nz,no\n")
    experiment = custom("backbone=tiny", "method.d=8")
    files = experiment.task.model_copy(update={"train": str(tmp_path / "a.csv")})
    server, node = runtime_of(experiment), runtime_of(experiment, files)
    assert node is runtime_of(experiment, files) and node is not server
    assert node.plan == server.plan and node.digest == experiment.digest
    assert len(node.task.train) == 2 and len(node.task.dev) == 1
    assert node.identity == {**server.plan, "backbone": node.backbone.fingerprint}


def test_equal_experiments_share_a_runtime_and_a_text_is_parsed_once() -> None:
    experiment = custom("backbone=tiny")
    toml = experiment.to_toml()
    assert parsed(toml) is parsed(toml)
    assert runtime_of(experiment) is runtime_of(parsed(toml))
    operational = custom("backbone=tiny", "engine.workers=3")
    assert operational.digest == experiment.digest
    assert runtime_of(operational).experiment == operational


def test_a_changed_file_makes_another_runtime_unless_a_run_has_begun(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("text,label\nx,no\ny,yes\nz,no\n")
    experiment = custom("backbone=tiny", "method.d=8", f"task.train={file}")
    before = runtime_of(experiment)
    os.utime(file, ns=(1, 1))  # the same content
    assert runtime_of(experiment) is before
    assert len(before.task.train) == 2
    file.write_text("text,label\nx,no\ny,yes\nz,no\nw,no\n")
    after = runtime_of(experiment)
    assert after is not before and len(after.task.train) == 3
    assert runtime_of(experiment, content=before.content) is before
    forget_runtimes()  # as in another process of the run
    with pytest.raises(UserError, match="have changed since the run began"):
        runtime_of(experiment, content=before.content)
    assert runtime_of(experiment, content=after.content).content == content_of(experiment)


def test_a_changed_backbone_makes_another_runtime(tmp_path: Path) -> None:
    backbone = load_backbone("tiny", "cpu")
    backbone.model.save_pretrained(tmp_path)
    backbone.tokenizer.save_pretrained(tmp_path)
    experiment = custom(f"backbone={tmp_path}", "method.d=8", "representation=mask")
    before = runtime_of(experiment)
    fingerprint = before.backbone.fingerprint
    assert runtime_of(experiment) is before
    weights = load_file(tmp_path / "model.safetensors")
    changed = {name: array + 1 for name, array in weights.items()}
    save_file(changed, tmp_path / "model.safetensors", {"format": "pt"})
    after = runtime_of(experiment)
    assert after.backbone.fingerprint != fingerprint
    assert before.backbone.fingerprint == fingerprint
