"""A process that runs cells: ``python -m simulations.study.cell_process``.

Jobs come as lines of JSON at its standard input, and their outcomes go to its standard output. The
jobs of a line run at the same time and share passes. When the input ends, the study has ended, and
this process ends at once: the cells can be resumed.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from math import ceil
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
        group: name of the jobs that can share passes, see ``group_of``; empty = none can.
    """

    name: str
    experiment: str
    folder: str
    backbone: str
    group: str = ""


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


def next_jobs(pending: list[Job], backbone: str, joint: int = 1, count: int = 1) -> list[Job]:
    """Take the next job, the first with the loaded backbone or the first, and others of its group.

    Args:
        pending: jobs that wait; loses those taken.
        backbone: the loaded one.
        joint: maximum number of jobs.
        count: number of processes that share the pending jobs.
    """
    first = next((job for job in pending if job.backbone == backbone), pending[0])
    same = [job for job in pending if job.group == first.group] if first.group else [first]
    most = min(joint, ceil(len(pending) / count))
    taken = [first, *(job for job in same if job is not first)][:most]
    pending[:] = [job for job in pending if job not in taken]
    return taken


def run_job(job: Job) -> Outcome:
    """Run or resume one cell; errors become its outcome."""
    from simulations.simulation import quiet

    with quiet():
        return _outcome(job)


def run_together(jobs: Sequence[Job], joint: int, report: Callable[[Outcome], None]) -> int:
    """Run or resume cells of a group in threads that share passes.

    Args:
        jobs: of the cells.
        joint: maximum number of jobs. It and not their number decides how many clients a pass has,
            so that a run does not depend on which others ran beside it.
        report: receives each outcome when its cell ends; one thread at a time calls it.

    Returns:
        The number of joint steps.
    """
    if joint == 1 or not jobs[0].group:
        report(run_job(jobs[0]))
        return 0
    from fedpeft.joint import Meeting
    from fedpeft.runtime import own_runtimes
    from simulations.simulation import quiet

    meeting = Meeting(len(jobs), joint)

    def run(job: Job) -> None:
        with meeting.member(), own_runtimes():
            report(_outcome(job))

    with quiet(), ThreadPoolExecutor(len(jobs)) as threads:
        list(threads.map(run, jobs))
    return meeting.shared


def _outcome(job: Job) -> Outcome:
    from fedpeft.errors import RunFailed, UserError
    from fedpeft.experiment.config import Experiment
    from fedpeft.runtime import forget_runtimes
    from simulations.simulation import complete

    try:
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
    given: queue.Queue[tuple[int, list[Job]]] = queue.Queue()
    threading.Thread(target=_listen, args=(given,), daemon=True).start()

    def report(outcome: Outcome) -> None:
        answers.write(json.dumps(asdict(outcome)) + "\n")
        answers.flush()

    while True:
        joint, jobs = given.get()
        run_together(jobs, joint, report)


def _listen(given: queue.Queue[tuple[int, list[Job]]]) -> None:
    for line in sys.stdin:
        joint, jobs = json.loads(line)
        given.put((joint, [Job(**job) for job in jobs]))
    os._exit(_GONE)


if __name__ == "__main__":
    main()
