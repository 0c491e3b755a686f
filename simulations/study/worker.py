"""A process that runs cells one after the other: ``python -m simulations.study.worker``.

Jobs come as lines of JSON at its standard input, and what became of each goes to its standard
output. When the input ends, the study is gone, and the worker ends at once, wherever it is: the
cell can be resumed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

_GONE = 3  # exit code of a worker whose study is gone


@dataclass(frozen=True)
class Job:
    """One run: its name, its experiment, its folder, and what decides which process suits it."""

    name: str
    experiment: str  # TOML
    folder: str
    backbone: str


@dataclass(frozen=True)
class Outcome:
    """What became of a job; ``reason`` is empty if it ended well, ``detail`` may be long."""

    name: str
    reason: str = ""
    detail: str = ""


def next_job(pending: list[Job], backbone: str) -> Job:
    """Take the next job: the first of the backbone that is loaded, else the first."""
    job = next((job for job in pending if job.backbone == backbone), pending[0])
    pending.remove(job)
    return job


def run_job(job: Job) -> Outcome:
    """Run one cell to its end, or go on with it; mistakes and failures become its outcome."""
    from fedpeft.config import Experiment
    from fedpeft.errors import RunFailed, UserError
    from fedpeft.runtime import forget_runtimes
    from simulations.run import complete, quiet

    try:
        with quiet():
            complete(Experiment.load(job.experiment), Path(job.folder))
    except (UserError, RunFailed) as error:
        return Outcome(job.name, str(error))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(job.name, reason[:300], traceback.format_exc())
    finally:
        forget_runtimes()  # the next cell has other data or another method; the backbone stays
    return Outcome(job.name)


def main() -> None:
    """Run the jobs of the standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    jobs: queue.Queue[Job] = queue.Queue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    while True:
        outcome = run_job(jobs.get())
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()


def _listen(jobs: queue.Queue[Job]) -> None:
    for line in sys.stdin:
        jobs.put(Job(**json.loads(line)))
    os._exit(_GONE)


if __name__ == "__main__":
    main()
