"""Groups of cells that can share passes through the backbone."""

from __future__ import annotations

from fedpeft.experiment.config import Experiment
from fedpeft.methods import method_class


def group_of(experiment: Experiment) -> str:
    """Return the name of a cell's group, whose cells can share passes; empty if it has none.

    The cells of a group differ only in the seed, the learning rate, the initial values
    (``method.init``) and the privacy budget or noise. Cells with a tracker have no group, because
    some trackers know one run per process; nor have those with zeroth-order gradients and those of
    methods that change whole weights.
    """
    engine, local, method = experiment.engine, experiment.local, experiment.method
    whole = not method_class(method.name).grouped
    if engine.kind != "local" or experiment.output.track or local.perturbations or whole:
        return ""
    init = type(method).model_fields.get("init")
    noise = ("epsilon", "noise_multiplier", "client_epsilon", "client_noise_multiplier")
    return experiment.model_copy(
        update={
            # VeRA's projections are inside the pass, and differ by seed.
            "seed": experiment.seed if method.name == "vera" else 0,
            "local": local.model_copy(update={"lr": None}),
            "method": method.model_copy(update={"init": init.default} if init else {}),
            "privacy": experiment.privacy.model_copy(update=dict.fromkeys(noise)),
        }
    ).digest
