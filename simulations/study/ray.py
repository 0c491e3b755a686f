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
from simulations.study.cell_process import Job, Outcome, next_jobs, run_together

_LOOK = 5.0  # seconds between two looks at the actors


class CellActor(Placed):
    """An actor that runs cells and keeps its backbone from one job to the next."""

    def run(self, joint: int, jobs: list[dict[str, str]]) -> list[dict[str, Any]]:
        """Run jobs that share passes to their end."""
        outcomes: list[dict[str, Any]] = []
        given = [Job(**job) for job in jobs]
        run_together(given, joint, lambda outcome: outcomes.append(asdict(outcome)))
        return outcomes


def run_on_ray(
    jobs: Sequence[Job], started: Callable[[Job], None], count: int, joint: int = 1
) -> Iterator[tuple[Job, Outcome]]:
    """Yield every job with its outcome, see ``run_jobs``.

    Outcomes of jobs that share passes arrive together, when the last one ends. A job whose actor
    dies is given to an actor once more.

    Args:
        jobs: in the order to run.
        started: called when a job is given to an actor.
        count: number of actors.
        joint: maximum number of jobs of a group that an actor runs at the same time.

    Raises:
        UserError: Ray is not installed.
        RunFailed: no actor works.
    """
    require_ray("--on ray")
    if not jobs:
        return
    import ray

    pending, lost = list(jobs), set[str]()
    running: dict[Any, tuple[Any, list[Job]]] = {}
    loaded: dict[Any, str] = {}  # the backbone of each actor
    with running_ray(count):
        gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
        actor_class = ray.remote(CellActor).options(num_cpus=1, num_gpus=gpus)
        actors = Actors(actor_class.remote, min(count, len(pending)))
        while pending or running:
            while pending and (actor := actors.take()):
                taken = next_jobs(pending, loaded.get(actor, ""), joint, count)
                for job in taken:
                    started(job)
                running[actor.run.remote(joint, [asdict(job) for job in taken])] = actor, taken
                loaded[actor] = taken[0].backbone
            for reference in actors.wait([*running], _LOOK):
                actor, taken = running.pop(reference)
                outcomes, alive = _outcomes(actors, actor, reference, taken)
                again = [job for job in taken if not alive and job.name not in lost]
                lost |= {job.name for job in again}
                pending[:0] = again
                yield from (
                    pair for pair in zip(taken, outcomes, strict=True) if pair[0] not in again
                )


def _outcomes(
    actors: Actors, actor: Any, reference: Any, jobs: Sequence[Job]
) -> tuple[list[Outcome], bool]:
    """Return the outcome of each job, and whether their actor lives; it is idle again, or lost."""
    import ray

    try:
        ended = {outcome["name"]: Outcome(**outcome) for outcome in ray.get(reference)}
        actors.give_back(actor)
        return [ended[job.name] for job in jobs], True
    except ray.exceptions.RayTaskError as error:
        actors.give_back(actor)
        reason, detail, alive = f"{type(error.cause).__name__} at its actor", str(error), True
    except ray.exceptions.RayError as error:
        machine, detail, alive = actors.lose(actor, error), str(error), False
        died = f"its actor died ({type(error).__name__}); is there enough memory?"
        reason = f"its machine, {machine}, was lost" if machine else died
    return [Outcome(job.name, reason, detail) for job in jobs], alive
