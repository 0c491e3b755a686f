"""Processes on this machine that run a study's cells: the local pool."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from simulations.study.folder import LOG
from simulations.study.worker import Job, Outcome, next_job

Started = Callable[[Job], None]


class Worker:
    """One process; its answers, and at last None, come to a queue that all workers share."""

    def __init__(self, answers: queue.Queue[tuple[Worker, Outcome | None]], log: IO):
        environment = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.job: Job | None = None
        self.backbone = ""  # of its last job: the one in its memory
        # A session of its own: Ctrl-C is for the study, which then ends its workers.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simulations.study.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**environment, **os.environ},
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, args=(answers,), daemon=True)
        self._listener.start()

    def give(self, job: Job) -> None:
        """Begin a job."""
        assert self.process.stdin is not None
        self.job, self.backbone = job, job.backbone
        try:
            self.process.stdin.write(json.dumps(asdict(job)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:  # it has just died: the queue will say so
            return

    def end(self) -> None:
        """End the process at once."""
        self.process.kill()
        self._listener.join()
        with suppress(BrokenPipeError):  # a job may be in its buffer still
            self.process.communicate()

    def _listen(self, answers: queue.Queue[tuple[Worker, Outcome | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, Outcome(**json.loads(line))))
        self.process.wait()
        answers.put((self, None))


def run_jobs(
    jobs: Sequence[Job], started: Started, count: int, log: Path
) -> Iterator[tuple[Job, Outcome]]:
    """Yield every job with its outcome, in the order in which they end.

    A worker goes on with jobs of the backbone it has loaded while there are any. One that dies
    fails its job and is replaced.

    Args:
        jobs: in the order wanted.
        started: called when a job begins.
        count: number of processes.
        log: file that gets what the processes print.
    """
    pending = list(jobs)
    answers: queue.Queue[tuple[Worker, Outcome | None]] = queue.Queue()
    with ExitStack() as stack:
        errors = stack.enter_context(open(log, "a", encoding="utf-8"))

        def hire() -> None:
            worker = Worker(answers, errors)
            stack.callback(worker.end)
            give(worker)

        def give(worker: Worker) -> None:
            if pending:
                job = next_job(pending, worker.backbone)
                started(job)
                worker.give(job)

        for _ in range(min(count, len(pending))):
            hire()
        for _ in range(len(jobs)):
            worker, job, outcome = _next(answers)
            yield job, outcome
            if worker.process.poll() is None:
                give(worker)
            elif pending:
                hire()


def _next(
    answers: queue.Queue[tuple[Worker, Outcome | None]],
) -> tuple[Worker, Job, Outcome]:
    """Wait for the end of a job; a worker that died in one ends it."""
    while True:
        worker, outcome = answers.get()
        job, worker.job = worker.job, None
        if job is None:
            continue  # it died between two jobs
        if outcome is None:
            outcome = Outcome(job.name, _how_it_ended(worker.process.returncode))
        return worker, job, outcome


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"its process was ended by signal {-code}; is the memory enough?"
    return f"its process ended with exit code {code}; {LOG} says more"
