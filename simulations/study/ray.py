"""A study's cells on a Ray cluster (extra ``ray``): actors that run a job at a time, one a GPU.

RAY_ADDRESS names the cluster; without it Ray is started on this machine. All machines must share
the study's folder under the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from simulations.ray import require_ray, running_ray
from simulations.study.cell_process import Job, Outcome, next_job, run_job


class CellActor:
    """An actor that runs cells and keeps its backbone from one job to the next."""

    def run(self, job: dict[str, str]) -> dict[str, str]:
        """Run one job to its end."""
        return asdict(run_job(Job(**job)))


def run_on_ray(
    jobs: Sequence[Job], started: Callable[[Job], None], count: int
) -> Iterator[tuple[Job, Outcome]]:
    """Yield every job with its outcome, in the order in which they end, see ``run_jobs``.

    Args:
        jobs: in the order to run.
        started: called when a job is given to an actor.
        count: number of actors.

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
                job = next_job(pending, backbone)
                started(job)
                running[actor.run.remote(asdict(job))] = actor, job

        for _ in range(min(count, len(pending))):
            give(actor_class.remote(), "")
        while running:
            (reference, *_), _ = ray.wait([*running])
            actor, job = running.pop(reference)
            outcome, alive = _outcome(reference, job)
            yield job, outcome
            if pending:
                give(actor if alive else actor_class.remote(), job.backbone if alive else "")


def _outcome(reference: Any, job: Job) -> tuple[Outcome, bool]:
    """Return the outcome of a job, and whether its actor is alive."""
    import ray

    try:
        return Outcome(**ray.get(reference)), True
    except ray.exceptions.RayTaskError as error:
        return Outcome(job.name, f"{type(error.cause).__name__} at its actor", str(error)), True
    except ray.exceptions.RayError as error:
        reason = f"its actor died ({type(error).__name__}); is the memory enough?"
        return Outcome(job.name, reason, str(error)), False
