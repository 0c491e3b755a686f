"""Tagged words all the way: training, evaluation, a federation, the list of tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import build_model
from models import encoded as encoded_examples

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import collate
from fedpeft.batches.encoded import IGNORED, Encoded
from fedpeft.cli.tasks import tasks
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import LocalSection
from fedpeft.model import TaskModel
from fedpeft.tasks.metrics import scores, tag_statistics
from fedpeft.tasks.synthetic import TASKS
from fedpeft.training import When, evaluate, train_cohort
from simulations.simulation import prepare, simulate

LABELS = TASKS[-1].labels
WHEN = When(0, 1, 1)


def tagger(backbone: Backbone, method: str = "linear", **settings: object) -> TaskModel:
    model = build_model(backbone, method, len(LABELS), kind="tags", **settings)
    model.labels = LABELS
    return model


def entities(backbone: Backbone, count: int) -> Encoded:
    return encoded_examples(backbone, "synthetic/entities", "mask", count)


def test_evaluation_is_that_of_single_texts_in_their_order(tiny: Backbone) -> None:
    model, data = tagger(tiny, "prompt"), entities(tiny, 70)
    vector = model.parameters.initial(3)
    result = evaluate(model, vector, data)
    assert result.outputs.shape == (len(data.tokens), len(LABELS))
    losses, counts = 0.0, np.zeros(6)
    for row in range(len(data)):
        alone = data.select(np.array([row]))
        batch = collate([alone], [np.array([0])], tiny.tokenizer.pad_token_id, "cpu", model.dtype)
        logits = model.outputs(model.realise(torch.from_numpy(vector)[None]), batch)
        losses += float(model.losses(logits, batch))
        outputs = logits[0].detach().numpy()
        place = slice(data.offsets[row], data.offsets[row + 1])
        np.testing.assert_allclose(result.outputs[place], outputs, atol=1e-10)
        counts += tag_statistics(outputs, alone.labels, alone.lengths, LABELS)
    assert result.loss_sum == pytest.approx(losses)
    assert result.statistics.tolist() == counts.tolist()
    assert result.statistics[:2].tolist() == [70, (data.labels != IGNORED).sum()]


def test_the_head_alone_beats_the_majority_and_a_method_learns_the_rule(tiny: Backbone) -> None:
    """Seen at this size: F1 0.25 and 0.99; the majority tags nothing and has 0."""
    data = entities(tiny, 900)
    train, dev = data.select(np.arange(800)), data.select(np.arange(800, 900))

    def learned(model: TaskModel, lr: float) -> dict[str, float]:
        local = LocalSection(lr=lr, epochs=10)
        vector = train_cohort(
            model, model.parameters.initial(0), [train], [0], local, WHEN
        ).vectors[0]
        return scores(evaluate(model, vector, dev).statistics, "tags")

    words = dev.labels[dev.labels != IGNORED]
    majority = np.bincount(words).max() / len(words)
    head = learned(tagger(tiny), 0.05)
    assert head["accuracy"] > majority + 0.3
    assert 0.15 < head["f1"] < 0.6
    assert learned(tagger(tiny, "lora", rank=8), 0.02)["f1"] > 0.9


def test_a_cohort_equals_single_clients(tiny: Backbone) -> None:
    model, data = tagger(tiny, "slash"), entities(tiny, 30)
    parts = [data.select(rows) for rows in np.split(np.arange(30), [4, 15])]
    local = LocalSection(lr=0.01, epochs=2, batch_size=4)
    start = model.parameters.initial(0)
    together = train_cohort(model, start, parts, [0, 1, 2], local, WHEN)
    for client, part in enumerate(parts):
        alone = train_cohort(model, start, [part], [client], local, WHEN)
        np.testing.assert_allclose(together.vectors[client], alone.vectors[0], atol=1e-9)
        assert together.losses[client] == pytest.approx(alone.losses[0])


def lines_of(experiment: Experiment, out: Path) -> list[dict[str, Any]]:
    folder, _ = prepare(experiment, out)
    simulate(folder, experiment)
    return folder.rounds()


def test_the_f1_of_a_federation_is_exactly_the_central_one(
    quick: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = ("task.name=synthetic/entities", "local.lr=0.05")
    here = lines_of(quick(*settings), tmp_path / "here")
    there = lines_of(quick(*settings, "federation.evaluation=clients"), tmp_path / "there")
    for one, other in zip(here, there, strict=True):
        assert one["loss"] == other["loss"]  # the same training
        assert one["metrics"] == other["metrics"]
        assert one["score"] == one["metrics"]["f1"]
        assert one["evaluated"] == other["evaluated"] == 40
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-5)
    assert here[-1]["score"] > 0


def test_tasks_are_listed_by_what_they_predict(capsys: pytest.CaptureFixture[str]) -> None:
    tasks()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "tags, 9 labels" in lines["conll2003"]
    assert "tags, 9 labels" in lines["synthetic/entities"]
    assert "2 classes" in lines["sst2"]
    assert " score " in lines["stsb"]
    assert "any classes" in lines["custom"]
