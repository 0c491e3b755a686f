"""The automatic cohort: a pure function of settings, sizes, data and memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import task_model

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.backbones.loading import load_backbone
from fedpeft.batches.batch import collate
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.config import Experiment
from fedpeft.heads import Full, Head
from fedpeft.methods import build_method
from simulations.engines.cohorts import CACHED, KEPT, MOST, cohort_size, saved_bytes

SIZE = 5000  # numbers of a task vector
GB = 1 << 30


def chosen(
    backbone: str,
    tokens: int,
    *settings: str,
    memory: int = 0,
    processes: int = 1,
    size: int = SIZE,
    texts: int = 16_000,
) -> int:
    experiment = Experiment.load("", [f"backbone={backbone}", "federation.clients=1000", *settings])
    shape, lengths = KNOWN_SHAPES[backbone], np.full(texts, tokens)
    return cohort_size(experiment, shape, size, lengths, memory, processes)


def test_a_cohort_size_from_the_settings_is_used() -> None:
    for kind in ("local", "ray"):
        for cohort in (1, 7):
            settings = (f"engine.cohort={cohort}", f"engine.kind={kind}")
            assert chosen("tiny", 12, *settings) == cohort


@pytest.mark.parametrize("memory", [0, 100 * GB])
def test_full_fine_tuning_has_cohorts_of_one(memory: int) -> None:
    assert chosen("tiny", 12, "method.name=full", memory=memory) == 1


def test_on_a_cpu_small_work_is_batched_and_large_is_not() -> None:
    sizes = [chosen("tiny", tokens) for tokens in (12, 32, 64, 128)]
    assert sizes[0] > 32
    assert sizes == sorted(sizes, reverse=True)
    assert 4 <= sizes[-1] <= 8
    assert 2 <= chosen("minilm", 16, "local.batch_size=8") <= 10
    assert chosen("minilm", 64) == chosen("roberta-base", 64) == 1
    assert chosen("minilm", 16, size=CACHED) == 1
    assert chosen("minilm", 16) < chosen("minilm", 16, "engine.autocast=bfloat16")


@pytest.mark.parametrize(("backbone", "tokens"), [("tiny", 128), ("minilm", 13), ("minilm", 64)])
def test_a_cohort_on_a_cpu_keeps_little_for_its_backward_pass(backbone: str, tokens: int) -> None:
    kept = 16 * saved_bytes(KNOWN_SHAPES[backbone], tokens, 4)
    assert chosen(backbone, tokens) == 1 or chosen(backbone, tokens) * kept <= KEPT


def test_a_gpu_takes_what_fits_its_memory() -> None:
    sizes = [chosen("roberta-base", 128, memory=gb * GB) for gb in (4, 16, 40)]
    assert sizes == sorted(set(sizes))
    for gb, clients in zip((4, 16, 40), sizes, strict=True):
        used = clients * 16 * saved_bytes(KNOWN_SHAPES["roberta-base"], 128, 4)
        assert gb * GB / 5 < used < gb * GB / 2
    assert (
        chosen("roberta-large", 128, memory=GB) == 1
    )  # does not fit at all; its own error says so
    longest = np.array([8] * 999 + [128])
    experiment = Experiment.load("", ["backbone=roberta-base", "federation.clients=100"])
    mixed = cohort_size(experiment, KNOWN_SHAPES["roberta-base"], SIZE, longest, 16 * GB)
    assert mixed == cohort_size(
        experiment, KNOWN_SHAPES["roberta-base"], SIZE, np.full(1000, 128), 16 * GB
    )


def test_long_task_vectors_and_examples_copies_take_memory() -> None:
    short, long = (chosen("roberta-base", 64, memory=16 * GB, size=n) for n in (SIZE, 10**7))
    assert long < short
    private = ("privacy.unit=example", "privacy.epsilon=8", "privacy.physical_batch=1024")
    plain = chosen("roberta-base", 64, memory=16 * GB, size=10**6)
    assert chosen("roberta-base", 64, *private, memory=16 * GB, size=10**6) < plain


def test_a_private_step_is_not_cut_for_the_cohort() -> None:
    private = ("privacy.unit=example", "privacy.epsilon=8", "local.batch_size=16")
    for physical, expected in ((64, 4), (16, 1), (8, 1)):
        settings = (*private, f"privacy.physical_batch={physical}")
        assert chosen("tiny", 12, *settings) == expected


def test_clients_are_spread_evenly() -> None:
    few = ("federation.clients=10", "local.batch_size=8")
    assert chosen("tiny", 12, *few) == 10
    assert chosen("tiny", 12, *few, "federation.fraction=0.3") == 3
    assert chosen("tiny", 12, *few, processes=3) == 4
    assert chosen("tiny", 12, "federation.clients=65", "local.batch_size=1") == 33
    assert chosen("tiny", 12, "local.batch_size=1") <= MOST


def test_clients_with_less_than_a_batch_count_as_they_are() -> None:
    assert chosen("minilm", 16, texts=2000) > chosen("minilm", 16)  # two texts each, not 16


@pytest.mark.parametrize("backbone", ["tiny", "minilm"])
@pytest.mark.parametrize("method", ["slash", "lora", "houlsby", "bitfit"])
def test_estimated_memory_of_a_forward_pass_is_close_to_what_autograd_saves(
    backbone: str, method: str
) -> None:
    """The oracle counts the tensors that autograd keeps."""
    loaded = load_backbone(backbone, "cpu", "float32")
    more = ["method.d=max"] if method == "slash" else []
    settings = Experiment.load("", [f"method.name={method}", *more]).method
    head = Head("classes", Full(2, loaded.shape.width))
    model = task_model(loaded, build_method(settings, loaded.shape, 0), head)
    texts, tokens = 2, 40
    examples = Encoded(
        np.full(texts * tokens, 7, np.int32),
        np.zeros(texts * tokens, np.uint8),
        np.arange(texts + 1) * tokens,
        np.full(texts, -1, np.int32),
        np.zeros(texts, np.int64),
    )
    batch = collate([examples], [np.arange(texts)], 1, "cpu", model.dtype)
    weights = {p.untyped_storage().data_ptr() for p in loaded.model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    vector = torch.as_tensor(model.parameters.initial(0))[None].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.outputs(model.realise(vector), batch)
    weights.add(vector.untyped_storage().data_ptr())
    saved = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in weights)
    reckoned = texts * saved_bytes(loaded.shape, tokens, 4)
    assert saved < 1.02 * reckoned
    assert reckoned < 3 * saved
