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

from simulations.study.cell_process import Job, Outcome, next_jobs
from simulations.study.folder import LOG

Started = Callable[[Job], None]


class CellProcess:
    """One process; its outcomes, and finally None, go to a queue that all processes share."""

    def __init__(self, answers: queue.Queue[tuple[CellProcess, Outcome | None]], log: IO):
        environment = {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        self.jobs: dict[str, Job] = {}  # those that run, by name
        self.backbone = ""  # of its last jobs: loaded in its memory
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

    def give(self, jobs: Sequence[Job], joint: int) -> None:
        """Begin jobs that share passes, see ``run_together``."""
        assert self.process.stdin is not None
        self.jobs, self.backbone = {job.name: job for job in jobs}, jobs[0].backbone
        try:
            self.process.stdin.write(json.dumps([joint, [asdict(job) for job in jobs]]) + "\n")
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
    jobs: Sequence[Job], started: Started, count: int, log: Path, joint: int = 1
) -> Iterator[tuple[Job, Outcome]]:
    """Yield every job with its outcome, in the order in which they end.

    A process prefers jobs with the backbone it has loaded. If it dies, its jobs fail and it is
    replaced.

    Args:
        jobs: in the order to run.
        started: called when a job begins.
        count: number of processes.
        log: file for the output of the processes.
        joint: maximum number of jobs of a group that a process runs at the same time.
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
                taken = next_jobs(pending, process.backbone, joint, count)
                for job in taken:
                    started(job)
                process.give(taken, joint)

        for _ in range(count):
            if pending:
                add()
        while left:
            process, ended = _next(answers)
            yield from ended
            left -= len(ended)
            if process.jobs:
                continue
            if process.process.poll() is None:
                give(process)
            elif pending:
                add()


def _next(
    answers: queue.Queue[tuple[CellProcess, Outcome | None]],
) -> tuple[CellProcess, list[tuple[Job, Outcome]]]:
    """Wait for the end of a job; the death of its process ends all that it runs."""
    while True:
        process, outcome = answers.get()
        if outcome:
            return process, [(process.jobs.pop(outcome.name), outcome)]
        if process.jobs:  # otherwise it died between jobs
            reason = _how_it_ended(process.process.returncode)
            died, process.jobs = process.jobs, {}
            return process, [(job, Outcome(job.name, reason)) for job in died.values()]


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"its process was ended by signal {-code}; is there enough memory?"
    return f"its process ended with exit code {code}; {LOG} says more"
