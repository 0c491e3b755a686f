"""A study's cells on a Ray cluster (extra ``ray``): actors, one a GPU, that run jobs.

RAY_ADDRESS names the cluster; without it Ray is started on this machine. All machines must share
the study's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from simulations.actors import Actors, Placed
from simulations.ray import require_ray, running_ray
from simulations.study.cell_process import Job, Outcome, next_job, run_job

_LOOK = 5.0  # seconds between two looks at the actors


class CellActor(Placed):
    """An actor that runs cells and keeps its backbone from one job to the next."""

    def run(self, job: dict[str, str]) -> dict[str, Any]:
        """Run a job to its end."""
        return asdict(run_job(Job(**job)))


def run_on_ray(
    jobs: Sequence[Job], started: Callable[[Job], None], count: int
) -> Iterator[tuple[Job, Outcome]]:
    """Yield every job with its outcome, see ``run_jobs``.

    A job whose actor dies is given to an actor once more.

    Args:
        jobs: in the order to run.
        started: called when a job is given to an actor.
        count: number of actors.

    Raises:
        UserError: Ray is not installed.
        RunFailed: no actor works.
    """
    require_ray("--on ray")
    if not jobs:
        return
    import ray

    pending, lost = list(jobs), set[str]()
    running: dict[Any, tuple[Any, Job]] = {}
    loaded: dict[Any, str] = {}  # the backbone of each actor
    with running_ray(count):
        gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
        actor_class = ray.remote(CellActor).options(num_cpus=1, num_gpus=gpus)
        actors = Actors(actor_class.remote, min(count, len(pending)))
        while pending or running:
            while pending and (actor := actors.take()):
                job = next_job(pending, loaded.get(actor, ""))
                started(job)
                running[actor.run.remote(asdict(job))] = actor, job
                loaded[actor] = job.backbone
            for reference in actors.wait([*running], _LOOK):
                actor, job = running.pop(reference)
                outcome, alive = _outcome(actors, actor, reference, job)
                if alive or job.name in lost:
                    yield job, outcome
                else:
                    lost.add(job.name)
                    pending.insert(0, job)


def _outcome(actors: Actors, actor: Any, reference: Any, job: Job) -> tuple[Outcome, bool]:
    """Return the outcome of a job, and whether its actor lives; it is idle again, or lost."""
    import ray

    try:
        outcome = Outcome(**ray.get(reference))
        actors.give_back(actor)
        return outcome, True
    except ray.exceptions.RayTaskError as error:
        actors.give_back(actor)
        reason, detail, alive = f"{type(error.cause).__name__} at its actor", str(error), True
    except ray.exceptions.RayError as error:
        machine, detail, alive = actors.lose(actor, error), str(error), False
        died = f"its actor died ({type(error).__name__}); is there enough memory?"
        reason = f"its machine, {machine}, was lost" if machine else died
    return Outcome(job.name, reason, detail), alive
