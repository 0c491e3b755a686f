"""A process that runs cells: ``python -m simulations.study.cell_process``.

Jobs come as lines of JSON at its standard input, and their outcomes go to its standard output. When
the input ends, the study has ended, and this process ends at once: the cells can be resumed.
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

_GONE = 3  # exit code if the study has ended


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        name: of the cell.
        experiment: TOML.
        folder: of the run.
        backbone: decides which process runs it.
    """

    name: str
    experiment: str
    folder: str
    backbone: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        name: of the job.
        reason: why it failed; empty if it succeeded.
        detail: more about the reason; may be long.
        retry: whether the same job may succeed when it runs again.
    """

    name: str
    reason: str = ""
    detail: str = ""
    retry: bool = True


def next_job(pending: list[Job], backbone: str) -> Job:
    """Take the first of the pending jobs with the loaded backbone, otherwise the first of all."""
    job = next((job for job in pending if job.backbone == backbone), pending[0])
    pending.remove(job)
    return job


def run_job(job: Job) -> Outcome:
    """Run or resume one cell; errors become its outcome."""
    from fedpeft.errors import RunFailed, UserError
    from fedpeft.experiment.config import Experiment
    from fedpeft.runtime import forget_runtimes
    from simulations.simulation import complete, quiet

    try:
        with quiet():
            complete(Experiment.load(job.experiment), Path(job.folder))
    except UserError as error:
        return Outcome(job.name, str(error), retry=False)
    except RunFailed as error:
        return Outcome(job.name, str(error))
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(job.name, reason[:300], traceback.format_exc())
    finally:
        forget_runtimes()  # the next cell differs in data or method; the backbone stays loaded
    return Outcome(job.name)


def main() -> None:
    """Run the jobs from standard input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries print to stderr
    given: queue.Queue[Job] = queue.Queue()
    threading.Thread(target=_listen, args=(given,), daemon=True).start()
    while True:
        answers.write(json.dumps(asdict(run_job(given.get()))) + "\n")
        answers.flush()


def _listen(given: queue.Queue[Job]) -> None:
    for line in sys.stdin:
        given.put(Job(**json.loads(line)))
    os._exit(_GONE)


if __name__ == "__main__":
    main()
