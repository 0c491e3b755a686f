"""Runs that share passes: each ends as it ends alone, whatever happens to the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Thread
from typing import NoReturn

import numpy as np
import pytest
import torch
from models import SMALL, encoded, random_vectors, task_model
from small_families import small_language, tolerance
from written_texts import encoded_texts, text_model

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.settings import LocalSection
from fedpeft.gradients import Step
from fedpeft.heads import Full, Head, Projected
from fedpeft.joint import Meeting, gradients_of, joint_gradients, runs_together
from fedpeft.methods import build_method, settings_for
from fedpeft.model import TaskModel
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.privacy.noise import SeededNoise
from fedpeft.profiling import Stopwatch
from fedpeft.randomness import When, generator
from fedpeft.training import CohortResult, train_cohort

SIZES = [[9, 20, 4], [6, 13], [11]]  # of the clients of each run


@dataclass(frozen=True)
class Run:
    """One run of a method with a seed, a learning rate and noise of its own."""

    model: TaskModel
    data: Sequence[Encoded]
    seed: int
    sigma: float = -1.0  # below 0: without DP-SGD

    def train(self) -> CohortResult:
        clients = [*range(len(self.data))]
        local = LocalSection(lr=0.01 * (self.seed + 1), batch_size=4)
        start, when = self.model.parameters.initial(self.seed), When(self.seed, 1, 4)
        private = None
        if self.sigma >= 0:
            private = [self._private(client) for client in clients]
        return train_cohort(self.model, start, self.data, clients, local, when, private)

    def _private(self, client: int) -> DPSGD:
        noise = SeededNoise(generator(self.seed, "test-noise", 1, client))
        mechanism = Mechanism(self.sigma, 0.4, client + 2)
        return DPSGD(mechanism, 0.6, "flat", 16, noise)


def runs_of(
    backbone: Backbone, name: str, changes: Sequence[dict[str, object]] = ({}, {}, {}), **how: int
) -> list[Run]:
    """Return runs that differ in seed, learning rate, texts and number of clients."""
    texts, runs = encoded(backbone, "synthetic/sentiment", "mask", 64), []
    for seed, (change, sizes) in enumerate(zip(changes, SIZES, strict=False)):
        settings = settings_for({"name": name, **SMALL[name], **change})
        method = build_method(settings, backbone.shape, how.get("seed", seed))
        model = task_model(backbone, method, Head("classes", Full(2, backbone.shape.width)))
        ends = np.cumsum([seed, *sizes])
        data = [texts.select(np.arange(a, b)) for a, b in pairwise(ends)]
        runs.append(Run(model, data, seed))
    return runs


def together(
    works: Sequence[Callable[[], CohortResult]],
) -> tuple[list[Future[CohortResult]], Meeting]:
    """Run each work in a thread of one meeting."""
    meeting = Meeting(len(works))

    def run(work: Callable[[], CohortResult]) -> CohortResult:
        with meeting.member():
            assert runs_together() == len(works)
            return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return [threads.submit(run, work) for work in works], meeting


def assert_same(actual: CohortResult, expected: CohortResult) -> None:
    np.testing.assert_allclose(actual.vectors, expected.vectors, rtol=0, atol=1e-9)
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=0, atol=1e-9)
    assert actual.steps.tolist() == expected.steps.tolist()


def assert_as_alone(runs: Sequence[Run]) -> Meeting:
    futures, meeting = together([run.train for run in runs])
    for run, future in zip(runs, futures, strict=True):
        assert_same(future.result(), run.train())
    return meeting


@pytest.mark.parametrize("name", ["slash", "lora", "prefix", "jr_warp", "linear"])
def test_joint_runs_end_as_separate_ones(tiny: Backbone, name: str) -> None:
    runs = runs_of(tiny, name)
    meeting = assert_as_alone(runs)
    assert meeting.shared == 4  # of 5, 4 and 3 steps, two or more runs take the first four


@pytest.mark.parametrize("name", ["slash", "lora", "prefix"])
def test_private_joint_runs_end_as_separate_ones(tiny: Backbone, name: str) -> None:
    runs = [replace(run, sigma=0.5 * run.seed) for run in runs_of(tiny, name)]
    meeting = assert_as_alone(runs)
    assert meeting.shared == 3  # of 4, 3 and 2 steps


def test_initial_values_and_their_projections_may_differ(tiny: Backbone) -> None:
    changes = [{"init": "normal"}, {"init": "zeros"}, {"init": "uniform"}]
    assert assert_as_alone(runs_of(tiny, "slash", changes)).shared == 4


def test_a_projection_inside_a_modification_must_be_the_same(tiny: Backbone) -> None:
    """VeRA applies its matrices to hidden states, so all rows of a pass have the same."""
    assert assert_as_alone(runs_of(tiny, "vera")).shared == 0
    assert assert_as_alone(runs_of(tiny, "vera", seed=3)).shared == 4


@pytest.mark.parametrize(
    "changes", [[{"d": 12}, {"d": 16}], [{"position": "output"}, {"position": "attention"}]]
)
def test_other_models_share_no_pass(tiny: Backbone, changes: list[dict[str, object]]) -> None:
    assert assert_as_alone(runs_of(tiny, "slash", changes)).shared == 0


def test_other_heads_and_clips_share_no_pass(tiny: Backbone) -> None:
    one, other, _ = runs_of(tiny, "slash", seed=3)
    head = Head("classes", Projected(2, tiny.shape.width, 5, 3))
    small = replace(other, model=task_model(tiny, other.model.method, head))
    assert assert_as_alone([one, small]).shared == 0
    assert assert_as_alone([one, replace(other, sigma=1.0)]).shared == 0


def test_whole_weights_are_trained_alone(tiny: Backbone) -> None:
    runs = [replace(run, data=run.data[:1]) for run in runs_of(tiny, "said")]
    assert assert_as_alone(runs).shared == 0


def test_a_run_that_fails_does_not_stop_the_others(
    tiny: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    """One fails before its first step, one in a joint step: it has a token that does not exist."""
    one, bad, other = runs_of(tiny, "slash")
    (texts, *rest) = bad.data
    tokens = texts.tokens.copy()
    tokens[:] = 10**6
    bad = replace(bad, data=[replace(texts, tokens=tokens), *rest])

    def absent() -> CohortResult:
        raise RuntimeError("absent")

    futures, meeting = together([one.train, bad.train, absent, other.train])
    assert isinstance(futures[1].exception(), IndexError)
    assert str(futures[2].exception()) == "absent"
    assert_same(futures[0].result(), one.train())
    assert_same(futures[3].result(), other.train())
    assert meeting.shared == 2  # the second and third step of the others
    (line,) = caplog.messages
    assert "a joint step of 3 runs failed, they go on sharing: IndexError" in line


def test_runs_whose_joint_step_fails_continue_alone(
    tiny: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    """States per text and states per token cannot be concatenated, and either can be read alone."""
    one, other, _ = runs_of(tiny, "linear")
    (texts, *_) = one.data
    draw = torch.Generator().manual_seed(0)
    width = tiny.shape.width

    def states(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, width, generator=draw, dtype=torch.float64)

    per_text = replace(one, data=[replace(texts, states=states(len(texts), 1))])
    per_token = replace(other, data=[replace(texts, states=states(len(texts.tokens)))])
    with caplog.at_level(logging.WARNING):
        meeting = assert_as_alone([per_text, per_token])
    assert meeting.shared == 0
    (line,) = caplog.messages
    assert "a joint step of 2 runs failed, they share no more passes: " in line


class Ending(list[Encoded]):
    """Texts whose reader is told to exit."""

    def __iter__(self) -> NoReturn:
        raise SystemExit


def test_a_run_that_exits_in_a_joint_step_leaves_no_other_waiting(tiny: Backbone) -> None:
    one, other, _ = runs_of(tiny, "slash")
    steps = [
        Step(run.model, random_vectors(run.model, 1), run.data[:1], [np.arange(2)])
        for run in (one, other)
    ]
    steps[1] = replace(steps[1], data=Ending(steps[1].data))
    meeting, errors = Meeting(2), []

    def ask(step: Step) -> None:
        try:
            with meeting.member():
                gradients_of(step)
        except BaseException as error:
            errors.append(type(error))

    threads = [Thread(target=ask, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(error.__name__ for error in errors) == ["RuntimeError", "SystemExit"]


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_text_is_written_by_joint_models(family: str) -> None:
    models = [text_model(small_language(family), "lora") for _ in range(2)]
    texts, vectors = encoded_texts(models[0].backbone), random_vectors(models[0], 3)
    steps = [
        Step(models[0], vectors[:2], [texts, texts], [np.array([0, 1, 4]), np.array([2])]),
        Step(models[1], vectors[2:], [texts], [np.array([3, 2])]),
    ]
    assert models[0].form == models[1].form
    for actual, step in zip(joint_gradients(steps), steps, strict=True):
        for one, other in zip(actual, step.gradients(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=tolerance(family, other))


def test_each_thread_measures_its_own_phases(tiny: Backbone) -> None:
    runs = runs_of(tiny, "slash")
    seconds = []

    def measured(run: Run) -> CohortResult:
        with Stopwatch().running() as watch:
            result = run.train()
        seconds.append(watch.seconds)
        return result

    futures, _ = together([lambda run=run: measured(run) for run in runs])  # type: ignore[misc]
    for run, future in zip(runs, futures, strict=True):
        assert_same(future.result(), run.train())
    assert len(seconds) == 3
    assert all(watch["optimiser"] > 0 for watch in seconds)
