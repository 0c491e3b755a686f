"""A GPU beside the CPU: methods, families, private steps, texts and whole runs.

float64 on both sides where not said otherwise, so that tolerances can be small.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from models import (
    GROUPED,
    VARIANTS,
    build_model,
    encoded,
    random_vectors,
    small_backbone,
    task_model,
)
from small_families import CONFIGS, WRITING, small_family, small_language, tolerance
from written_texts import encoded_texts, text_model

from fedpeft.backbones.loading import Backbone, load_backbone
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import LocalSection
from fedpeft.heads import Full, Head
from fedpeft.methods import build_method, settings_for
from fedpeft.model import TaskModel
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.privacy.noise import SeededNoise
from fedpeft.randomness import When, generator
from fedpeft.runs.predicting import predict
from fedpeft.runs.trained import Trained
from fedpeft.tasks import Examples
from fedpeft.text import generation
from fedpeft.text.model import Search
from fedpeft.training import CohortResult, evaluate, train_cohort
from simulations.simulation import prepare, simulate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

QUICK = [
    "backbone=tiny",
    "task.train_limit=60",
    "task.eval_limit=40",
    "federation.clients=3",
    "federation.rounds=2",
    "local.batch_size=8",
    "local.optimizer=sgd",  # Adam makes rounding errors large where there is no gradient
    "output.plots=false",
]
WHEN = When(seed=5, round=2, rounds=4)
SIZES = (9, 20, 4)  # ragged: 3, 5 and 1 steps of 4 examples


@lru_cache
def moved(backbone: Backbone) -> Backbone:
    """Return a copy of a backbone on the GPU."""
    model, language = copy.deepcopy((backbone.model, backbone.language))
    for part in (model, language):  # they may share some modules, or only weights
        if part is not None:
            part.to("cuda")
    return replace(backbone, model=model, language=language, device=torch.device("cuda"))


def clients_of(backbone: Backbone, sizes: tuple[int, ...]) -> list[Encoded]:
    examples = encoded(backbone, "synthetic/sentiment", "mask", sum(sizes))
    ends = np.cumsum([0, *sizes])
    return [
        examples.select(np.arange(end - size, end))
        for size, end in zip(sizes, ends[1:], strict=True)
    ]


def trained(model: TaskModel, sigma: float = -1.0, **settings: Any) -> CohortResult:
    """Train three clients, or one where rows cannot differ; with DP-SGD for ``sigma`` >= 0."""
    clients = clients_of(model.backbone, SIZES if model.method.grouped else SIZES[:1])
    # The key's bias has no gradient but rounding errors, which Adam would make large.
    local = LocalSection(optimizer="sgd", lr=0.5, batch_size=4, epochs=2, **settings)
    private = None
    if sigma >= 0:
        noises = [SeededNoise(generator(5, "test", 2, client)) for client in range(len(clients))]
        private = [DPSGD(Mechanism(sigma, 0.4, 3), 0.6, "flat", 16, noise) for noise in noises]
    start = model.parameters.initial(0)
    return train_cohort(model, start, clients, [*range(len(clients))], local, WHEN, private)


def both(build: Callable[[Backbone], TaskModel], backbone: Backbone) -> list[TaskModel]:
    return [build(backbone), build(moved(backbone))]


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_every_method_trains_as_on_the_cpu(name: str, settings: dict[str, object]) -> None:
    backbone = small_backbone("roberta")
    models = both(lambda backbone: build_model(backbone, name, **settings), backbone)
    here, there = (trained(model) for model in models)
    np.testing.assert_allclose(there.vectors, here.vectors, rtol=0, atol=1e-9)
    np.testing.assert_allclose(there.losses, here.losses, rtol=0, atol=1e-9)
    assert np.abs(here.vectors - models[0].parameters.initial(0)).max() > 0.01
    one, other = (
        evaluate(model, here.vectors[0], clients_of(backbone, (50,))[0]).outputs for model in models
    )
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [*GROUPED, "full", "said"])
def test_private_steps_equal_those_of_the_cpu(tiny: Backbone, name: str) -> None:
    here, there = (trained(m, 0.8) for m in both(lambda b: build_model(b, name), tiny))
    np.testing.assert_allclose(there.vectors, here.vectors, rtol=0, atol=1e-8)


def test_steps_without_gradients_equal_those_of_the_cpu(tiny: Backbone) -> None:
    models = both(lambda backbone: build_model(backbone, "slash"), tiny)
    here, there = (trained(m, perturbations=3) for m in models)
    np.testing.assert_allclose(there.vectors, here.vectors, rtol=0, atol=1e-8)
    np.testing.assert_allclose(there.slopes, here.slopes, rtol=0, atol=1e-8)


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_has_the_outputs_and_gradients_of_the_cpu(family: str) -> None:
    backbone = small_family(family)
    made = []
    for model in both(lambda b: build_model(b, "slash"), backbone):
        texts, rows = clients_of(model.backbone, (6, 6)), [np.arange(6)] * 2
        vectors = random_vectors(model, 2).to(model.backbone.device)
        made.append([part.cpu() for part in model.gradients(vectors, model.collate(texts, rows))])
    for here, there in zip(*made, strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=tolerance(family, here))


@pytest.mark.parametrize("family", WRITING)
@pytest.mark.parametrize("name", ["lora", "prompt"])
def test_texts_are_written_as_on_the_cpu(family: str, name: str) -> None:
    backbone, written = small_language(family), []
    search = generation._with_cache if name == "lora" else generation._without_cache
    for each in (backbone, moved(backbone)):
        model = text_model(each, name)
        prompts = generation._prompts(encoded_texts(each))
        vectors = random_vectors(model, 1).to(each.device)
        with torch.inference_mode():
            changes = model.realise(vectors).modifications
            batch = model.collate([prompts], [np.arange(5)])
            written.append(search(model, changes, batch, Search(tokens=7)).cpu())
    assert torch.equal(*written)


@pytest.mark.parametrize(
    "options",
    [{"checkpointing": True}, {"cache": 1 << 20}, {"projections": "regenerated"}],
    ids=str,
)
@pytest.mark.parametrize("sigma", [-1.0, 0.8])
def test_ways_through_the_code_change_nothing_but_rounding(
    options: dict[str, Any], sigma: float
) -> None:
    """In float32, which the kernel of projections needs."""
    backbone = load_backbone("tiny", "cuda", "float32")
    slash = build_method(settings_for({"name": "slash", "d": 12, "layers": "1"}), backbone.shape, 3)
    head = Head("classes", Full(2, backbone.shape.width))
    plain, other = task_model(backbone, slash, head), task_model(backbone, slash, head, **options)
    expected, actual = trained(plain, sigma), trained(other, sigma)
    np.testing.assert_allclose(actual.vectors, expected.vectors, rtol=0, atol=2e-4)
    assert np.abs(expected.vectors - plain.parameters.initial(0)).max() > 0.01
    if "cache" in options and sigma < 0:  # samples of DP-SGD may leave out texts
        assert other.kept.size > 0


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_compact_weights_have_the_outputs_of_the_cpu(weights: str) -> None:
    outputs = []
    for device in ("cpu", "cuda"):
        model = build_model(load_backbone("tiny", device, weights=weights), "lora")
        vector = model.parameters.initial(0)
        outputs.append(evaluate(model, vector, clients_of(model.backbone, (12,))[0]).outputs)
    atol = 1e-4 if weights == "int8" else 3e-2
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["slash", "lora", "bitfit", "prefix", "full"])
def test_bfloat16_has_nearly_the_gradients_of_float32(name: str) -> None:
    backbone = load_backbone("tiny", "cuda", "float32")
    texts, rows = clients_of(backbone, (12,)), [np.arange(12)]
    made = []
    for autocast in ("off", "auto"):
        plain = build_model(backbone, name)
        model = task_model(backbone, plain.method, plain.head, autocast=autocast)
        vectors = random_vectors(model, 1, 0.1).to("cuda", torch.float32)
        made.append(model.gradients(vectors, model.collate(texts, rows)))
    (exact, loss), (close, other) = made
    assert not torch.equal(exact, close), "auto is bfloat16 on this GPU"
    torch.testing.assert_close(other, loss, rtol=0.02, atol=0)
    assert torch.cosine_similarity(exact, close)[0] > 0.98


@pytest.mark.parametrize("method", ["slash", "lora", "uni_lora", "full"])
def test_a_run_ends_as_on_the_cpu_with_the_same_bits_each_time(tmp_path: Path, method: str) -> None:
    made = []
    for number, device in enumerate(("cpu", "cuda", "cuda")):
        d = ["method.d=16"] if method in ("slash", "uni_lora") else []
        settings = [f"method.name={method}", *d, f"engine.device={device}", "engine.dtype=float64"]
        experiment = Experiment.load("", [*QUICK, *settings])
        folder, _ = prepare(experiment, tmp_path / str(number))
        simulate(folder, experiment)
        made.append(Trained.read(folder.path))
    here, there, again = (trained.vector for trained in made)
    np.testing.assert_allclose(there, here, rtol=0, atol=1e-8)
    assert np.array_equal(there, again)
    texts = Examples(["a good film", "a very dull plot"], None, np.zeros(2))
    expected, actual = (predict(trained, texts) for trained in made[:2])
    assert [one.value for one in actual] == [other.value for other in expected]
