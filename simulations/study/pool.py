"""The local pool: processes on this machine that run a study's cells."""

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

from simulations.study.cell_process import Job, Outcome, next_job
from simulations.study.folder import LOG

Started = Callable[[Job], None]


class CellProcess:
    """One process; its outcomes, and finally None, go to a queue that all processes share."""

    def __init__(self, answers: queue.Queue[tuple[CellProcess, Outcome | None]], log: IO):
        environment = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.job: Job | None = None  # the one that runs
        self.backbone = ""  # of its last job: loaded in its memory
        # A new session: Ctrl-C goes to the study, which then ends its processes.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "simulations.study.cell_process"],
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
        except BrokenPipeError:  # the process has died: the queue tells
            return

    def end(self) -> None:
        """End the process at once."""
        self.process.kill()
        self._listener.join()
        with suppress(BrokenPipeError):  # its buffer may still hold a job
            self.process.communicate()

    def _listen(self, answers: queue.Queue[tuple[CellProcess, Outcome | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answers.put((self, Outcome(**json.loads(line))))
        self.process.wait()
        answers.put((self, None))


def run_jobs(
    jobs: Sequence[Job], started: Started, count: int, log: Path
) -> Iterator[tuple[Job, Outcome]]:
    """Yield every job with its outcome, in the order in which they end.

    A process prefers jobs with the backbone it has loaded. If it dies, its job fails and it is
    replaced.

    Args:
        jobs: in the order to run.
        started: called when a job begins.
        count: number of processes.
        log: file for the output of the processes.
    """
    pending = list(jobs)
    left = len(pending)
    answers: queue.Queue[tuple[CellProcess, Outcome | None]] = queue.Queue()
    with ExitStack() as stack:
        errors = stack.enter_context(open(log, "a", encoding="utf-8"))

        def add() -> None:
            process = CellProcess(answers, errors)
            stack.callback(process.end)
            give(process)

        def give(process: CellProcess) -> None:
            if pending:
                job = next_job(pending, process.backbone)
                started(job)
                process.give(job)

        for _ in range(count):
            if pending:
                add()
        while left:
            process, job, outcome = _next(answers)
            yield job, outcome
            left -= 1
            if process.process.poll() is None:
                give(process)
            elif pending:
                add()


def _next(
    answers: queue.Queue[tuple[CellProcess, Outcome | None]],
) -> tuple[CellProcess, Job, Outcome]:
    """Wait for the end of a job, also by the death of its process."""
    while True:
        process, outcome = answers.get()
        if process.job:  # otherwise it died between jobs
            job, process.job = process.job, None
            reason = _how_it_ended(process.process.returncode) if outcome is None else ""
            return process, job, outcome or Outcome(job.name, reason)


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"its process was ended by signal {-code}; is there enough memory?"
    return f"its process ended with exit code {code}; {LOG} says more"
