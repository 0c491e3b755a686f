"""A study's cells on a Ray cluster (extra ``ray``): actors, one a GPU, that run jobs.

RAY_ADDRESS names the cluster; without it Ray is started on this machine. All machines must share
the study's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from simulations.ray import require_ray, running_ray
from simulations.study.cell_process import Job, Outcome, next_jobs, run_together


class CellActor:
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

    Outcomes of jobs that share passes arrive together, when the last one ends.

    Args:
        jobs: in the order to run.
        started: called when a job is given to an actor.
        count: number of actors.
        joint: maximum number of jobs of a group that an actor runs at the same time.

    Raises:
        UserError: Ray is not installed.
    """
    require_ray("--on ray")
    import ray

    pending, running = list(jobs), {}
    with running_ray(count):
        gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
        actor_class = ray.remote(CellActor).options(num_cpus=1, num_gpus=gpus)

        def give(actor: Any, backbone: str) -> None:
            if pending:
                taken = next_jobs(pending, backbone, joint, count)
                for job in taken:
                    started(job)
                running[actor.run.remote(joint, [asdict(job) for job in taken])] = actor, taken

        for _ in range(min(count, len(pending))):
            give(actor_class.remote(), "")
        while running:
            (reference, *_), _ = ray.wait([*running])
            actor, taken = running.pop(reference)
            outcomes, alive = _outcomes(reference, taken)
            yield from zip(taken, outcomes, strict=True)
            if pending:
                give(actor if alive else actor_class.remote(), taken[0].backbone if alive else "")


def _outcomes(reference: Any, jobs: Sequence[Job]) -> tuple[list[Outcome], bool]:
    """Return the outcome of each job, and whether their actor is alive."""
    import ray

    try:
        ended = {outcome["name"]: Outcome(**outcome) for outcome in ray.get(reference)}
        return [ended[job.name] for job in jobs], True
    except ray.exceptions.RayTaskError as error:
        reason, detail, alive = f"{type(error.cause).__name__} at its actor", str(error), True
    except ray.exceptions.RayError as error:
        reason = f"its actor died ({type(error).__name__}); is the memory enough?"
        detail, alive = str(error), False
    return [Outcome(job.name, reason, detail) for job in jobs], alive
