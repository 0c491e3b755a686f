"""Cells that can share passes through the backbone, and how many run at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from fedpeft.experiment.config import Experiment
from fedpeft.methods import method_class

ON_GPU = 4  # runs at the same time in a process that trains on a GPU; a guess, not measured


def alike(experiment: Experiment) -> str:
    """Return a name that cells have in common if they can share passes; empty if none can.

    Alike cells differ only in the seed, the learning rate, the initial values (``method.init``) and
    the privacy budget or noise. Cells with a tracker run alone, because some trackers know one run
    per process; so do those whose clients measure their own time, and those without gradients.
    """
    engine, local, federation = experiment.engine, experiment.local, experiment.federation
    timed = federation.partial and not experiment.devices.step_seconds
    whole = not method_class(experiment.method.name).grouped
    if engine.kind != "local" or experiment.output.track or local.perturbations or timed or whole:
        return ""
    init = type(experiment.method).model_fields.get("init")
    noise = ("epsilon", "noise_multiplier", "client_epsilon", "client_noise_multiplier")
    return experiment.model_copy(
        update={
            "seed": 0,
            "local": local.model_copy(update={"lr": None}),
            "method": experiment.method.model_copy(update={"init": init.default} if init else {}),
            "privacy": experiment.privacy.model_copy(update=dict.fromkeys(noise)),
        }
    ).digest


def at_once(asked: int, experiments: Sequence[Experiment]) -> int:
    """Return how many alike cells a process runs at the same time.

    Args:
        asked: by the user; 0 = automatic: several on a GPU, 1 on a CPU.
        experiments: of the cells.
    """
    if asked:
        return asked
    import torch

    devices = {experiment.engine.device for experiment in experiments}
    return ON_GPU if devices <= {"auto", "cuda"} and torch.cuda.is_available() else 1
