"""Every head: its gradients, and the head that an experiment's settings give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from finished import finished_run
from models import batch_of, build_model, part_of, random_vectors, small_backbone, task_model

from fedpeft.backbones.loading import Backbone
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import HeadSection
from fedpeft.heads import Full, Head, Labelled, LowRank, Projected, Weights, build_head
from fedpeft.runs.predicting import predict
from fedpeft.runs.trained import Trained
from fedpeft.runtime import Runtime
from fedpeft.tasks import TaskInfo
from fedpeft.training import evaluate
from fedpeft.updates.transfer import size_up
from fedpeft.wire.codecs import encoded_size

HEADS: dict[str, Callable[[int, int], Weights]] = {
    "full": Full,
    "projected": lambda classes, width: Projected(classes, width, 7, seed=3),
    "low rank": lambda classes, width: LowRank(classes, width, 1 if classes < 3 else 2),
    "labelled": lambda classes, width: Labelled(
        Projected(classes, width, 7, seed=3), [f"name {index}" for index in range(classes)], "mean"
    ),
}


@pytest.fixture(params=["roberta", "bert"])
def small(request: pytest.FixtureRequest) -> Backbone:
    return small_backbone(request.param)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(
    ("kind", "classes", "task", "representation"),
    [
        ("classes", 2, "synthetic/sentiment", "mask"),
        ("classes", 3, "synthetic/inference", "cls"),
        ("score", 1, "synthetic/similarity", "mean"),
        ("tags", 9, "synthetic/entities", "mask"),
    ],
)
def test_example_gradients_pass_through_the_head(
    small: Backbone, name: str, kind: str, classes: int, task: str, representation: str
) -> None:
    """The oracle is a loop over batches of one example."""
    if name in ("low rank", "labelled") and kind == "score":
        pytest.skip("a single output has neither a lower rank nor a label")
    head = Head(kind, HEADS[name](classes, small.shape.width))
    model = task_model(small, build_model(small, "slash").method, head)
    batch = batch_of(small, 2, 3, representation, task)
    vectors = random_vectors(model, 2)
    result, _ = model.example_gradients(vectors, batch)
    assert (result != 0).any(0).all()
    for row in range(6):
        vector = vectors[row // 3 : row // 3 + 1]
        (expected,), _ = model.gradients(vector, part_of(batch, row, row + 1))
        torch.testing.assert_close(result[row], expected, rtol=1e-9, atol=1e-10)


def info(classes: int) -> TaskInfo:
    """A task of this many classes."""
    labels = tuple(f"class {index}" for index in range(classes))
    return TaskInfo("made up", "classes", labels, False, "accuracy", None, "")


@pytest.mark.parametrize(
    ("classes", "settings", "expected", "labels"),
    [
        (2, [], Full, False),
        (150, [], Full, False),
        (99, ["head.rank=3"], LowRank, False),
        (100, ["head.rank=3"], LowRank, True),
        (100, ["head.rank=3", "head.labels=false"], LowRank, False),
        (100, ["head.d=10"], Projected, True),
        (9, ["head.labels=true"], Full, True),
    ],
)
def test_the_head_follows_the_settings_and_the_number_of_classes(
    classes: int, settings: list[str], expected: type[Weights], labels: bool
) -> None:
    section = Experiment.load("", settings).head
    weights = build_head(info(classes), 384, section, 0, "mean").weights
    assert isinstance(weights, Labelled) == labels
    assert isinstance(weights.rest if isinstance(weights, Labelled) else weights, expected)


def test_clients_send_the_numbers_of_a_head_with_many_classes_in_few_bits() -> None:
    experiment = Experiment.load("", ["backbone=tiny", "method.d=8"])
    numbers = 100 * (32 + 1)
    assert size_up(Runtime(experiment, known=info(100))) == 4 * 8 + encoded_size(numbers, "eden4")
    exact = Experiment.load("", ["backbone=tiny", "method.d=8", "wire.head=float32"])
    assert size_up(Runtime(exact, known=info(100))) == 4 * (8 + numbers)


@pytest.mark.parametrize("change", [{"kind": "tags"}, {"labels": tuple(map(str, range(150)))}])
def test_tags_and_numbered_classes_start_without_labels(change: dict[str, Any]) -> None:
    """Names without a meaning are no start."""
    many = replace(info(150), **change)
    assert isinstance(build_head(many, 384, HeadSection(rank=3), 0, "mean").weights, LowRank)


def test_a_rank_and_a_projection_exclude_each_other() -> None:
    with pytest.raises(UserError, match=r"head.rank = 4: has no effect with head.d = 10"):
        Experiment.load("", ["head.rank=4", "head.d=10"])


def test_a_method_that_trains_only_the_head_has_nothing_to_slow() -> None:
    with pytest.raises(UserError, match=r"head.steepness = 2: 'linear' trains only the head"):
        Experiment.load("", ["method.name=linear", "head.steepness=2"])


def test_the_experiments_head_reaches_the_model() -> None:
    quick = ["backbone=tiny", "method.d=8", "task.train_limit=8"]
    layout = Runtime(Experiment.load("", [*quick, "head.d=10"])).model.layout
    assert (layout.size, layout.head_size) == (8 + 10 + 2, 10 + 2)
    layout = Runtime(Experiment.load("", [*quick, "head.rank=1"])).model.layout
    assert layout.head_size == 1 * (2 + 32) + 2
    wrong = Runtime(Experiment.load("", [*quick, "head.d=64"]))
    with pytest.raises(UserError, match=r"head.d = 64: expected less than 64"):
        _ = wrong.model


SETTINGS = (["head.d=20"], ["head.rank=1"], ["head.rank=1", "head.labels=true"])


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
@pytest.mark.parametrize("private", [False, True])
def test_a_run_with_the_head_predicts_as_it_was_evaluated(
    settings: list[str], private: bool
) -> None:
    unit = ["privacy.unit=example", "privacy.noise_multiplier=1"] if private else []
    folder = finished_run("method.name=slash", "method.d=12", *settings, *unit)
    trained = Trained.read(folder)
    start = trained.model.parameters.initial(trained.experiment.seed)
    assert (trained.vector != start)[-trained.model.layout.head_size :].all()
    assert_predicts_as_evaluated(trained)


def test_a_run_with_a_small_head_of_many_named_classes_starts_from_labels(tmp_path: Path) -> None:
    labels = [f"{one} {other}" for one in "abcdefghij" for other in "klmnopqrst"]
    rows = "".join(f"the text of {label}\t{label}\n" for label in labels)
    (tmp_path / "texts.tsv").write_text(f"text\tlabel\n{rows}")
    files = [f"task.{split}={tmp_path / 'texts.tsv'}" for split in ("train", "dev")]
    custom = ["task.name=custom", *files, "task.train_limit=0", "task.eval_limit=0"]
    trained = Trained.read(finished_run(*custom, "method.name=slash", "method.d=12", "head.rank=3"))
    assert trained.model.layout.head_size == 3 * (100 + 32) + 1 + 100
    assert_predicts_as_evaluated(trained)


def assert_predicts_as_evaluated(trained: Trained) -> None:
    """Check that a loaded vector predicts the run's own outputs."""
    runtime = Runtime(trained.experiment)
    outputs = evaluate(runtime.model, trained.vector, runtime.dev).outputs
    predictions = [prediction.value for prediction in predict(trained, runtime.task.dev)]
    assert predictions == [trained.labels[index] for index in outputs.argmax(axis=1)]
