"""Several runs in one batch: threads that meet at their steps and share passes.

A run is a thread that trains as usual. Where it needs the gradients of a step, it hands the step to
the meeting and waits. When all runs wait, the steps that can share passes become one step: the
model of each run realises its own task vectors, and the realised tensors share one pass through
the frozen backbone along the group axis. Gradients equal those of separate runs up to rounding, and
all random numbers of a run derive from its own seed.

Only one thread runs at a time, and it changes only where a thread waits for its gradients, waits
to begin, or ends. So the code between needs no locks: hooks in the shared backbone and caches
belong to the thread that runs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from fedpeft.gradients import Step
from fedpeft.profiling import waiting

log = logging.getLogger(__name__)
Gradients = tuple[Tensor, Tensor]  # gradients [G, P] and losses [G]


class Meeting:
    """Runs that share passes.

    Each of its threads must enter ``member``; a thread that leaves, also by an error, does not stop
    the others. If a joint step fails, each run's step is computed separately, and only a run whose
    step fails again gets an error. If none does, as when memory is not enough for all, they share
    no passes from then on.

    Args:
        members: number of threads.
        most: number of runs that a pass is planned for; None = ``members``.

    Attributes:
        most: see above.
        shared: number of joint steps.
    """

    def __init__(self, members: int, most: int | None = None):
        self.most, self.shared = most or members, 0
        self._present, self._joins = members, True
        self._turn = threading.Condition()
        self._waiting: list[_Request] = []

    @contextmanager
    def member(self) -> Iterator[None]:
        """Make the calling thread one of the runs while the context is open."""
        with self._turn:
            token = _MEETING.set(self)
            try:
                yield
            finally:
                _MEETING.reset(token)
                self._present -= 1
                self._turn.notify_all()

    def gradients(self, step: Step) -> Gradients:
        """Return the gradients of a step of the calling thread, see ``Step.gradients``."""
        request = _Request(step)
        self._waiting.append(request)
        self._turn.notify_all()
        with waiting():
            self._turn.wait_for(lambda: request.done or len(self._waiting) == self._present)
        if not request.done:
            self._answer()
        return request.result()

    def _answer(self) -> None:
        """Compute what all threads wait for."""
        same: dict[Hashable, list[_Request]] = {}
        requests, self._waiting = self._waiting, []
        try:
            for request in requests:
                same.setdefault(_key(request.step), []).append(request)
            for alike in same.values():
                if len(alike) > 1 and self._joins:
                    self._share(alike)
                else:
                    _compute(alike)
        finally:  # also at the end of this thread by a signal or an exit
            for request in requests:
                if not request.done:
                    request.error = RuntimeError("the run that computed a joint step has ended")
            self._turn.notify_all()

    def _share(self, requests: Sequence[_Request]) -> None:
        """Answer by one joint step; if it fails, separately."""
        try:
            results = joint_gradients([request.step for request in requests])
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        else:
            self.shared += 1
            for request, gradients in zip(requests, results, strict=True):
                request.answer = gradients
            return
        # Not within ``except``: the error holds the tensors of the failed step.
        _compute(requests)
        self._joins = any(request.error for request in requests)
        then = "they go on sharing" if self._joins else "they share no more passes"
        log.warning("a joint step of %d runs failed, %s: %s", len(requests), then, reason)


class _Request:
    """A step that a thread waits for."""

    def __init__(self, step: Step):
        self.step = step
        self.answer: Gradients | None = None
        self.error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None or self.error is not None

    def result(self) -> Gradients:
        if self.error:
            raise self.error
        assert self.answer is not None
        return self.answer


def _compute(requests: Sequence[_Request]) -> None:
    """Answer each separately."""
    for request in requests:
        try:
            request.answer = request.step.gradients()
        except Exception as error:
            request.error = error


_MEETING: ContextVar[Meeting | None] = ContextVar("meeting", default=None)


def gradients_of(step: Step) -> Gradients:
    """Return the gradients of a step, computed with those of other runs of a ``Meeting``."""
    meeting = _MEETING.get()
    return meeting.gradients(step) if meeting else step.gradients()


def runs_together() -> int:
    """Return the number of runs that a pass of the calling thread is planned for, at least 1."""
    meeting = _MEETING.get()
    return meeting.most if meeting else 1


def joint_gradients(steps: Sequence[Step]) -> list[Gradients]:
    """Return the gradients of steps that can share passes, computed as one step."""
    groups = [len(step.vectors) for step in steps]
    models = [step.model for step in steps]
    joint = Step(
        models[0].beside(models[1:], groups),
        torch.cat([step.vectors for step in steps]),
        [texts for step in steps for texts in step.data],
        [rows for step in steps for rows in step.batches],
        [client for step in steps for client in step.private],
        _fixed(steps),
    )
    gradients, losses = joint.gradients()
    return list(zip(gradients.split(groups), losses.split(groups), strict=True))


def _fixed(steps: Sequence[Step]) -> Tensor | None:
    if all(step.fixed is None for step in steps):
        return None
    masks = [
        torch.zeros_like(step.vectors, dtype=torch.bool)
        if step.fixed is None
        else step.fixed[: len(step.vectors)]
        for step in steps
    ]
    return torch.cat(masks)


def _key(step: Step) -> Hashable:
    """Return what steps must have in common to share passes; unique if a step can share none."""
    if not step.model.method.grouped:
        return object()
    kept = all(texts.states is not None for texts in step.data)
    # The clients of a cohort differ in mechanism and noise only.
    private = [(p.clip, p.clipping, p.physical_batch, p.rank) for p in step.private[:1]]
    return (step.model.form, step.vectors.dtype, kept, *private)
