"""Checks of an experiment before it is given to a server."""

from __future__ import annotations

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.wire.messages import EXPERIMENT_BYTES


def require_deployable(experiment: Experiment) -> None:
    """Refuse settings that only a simulation can have, and texts that nodes would refuse.

    Raises:
        UserError: the experiment is for simulations only, or too long.
    """
    if experiment.adversary.fraction:
        raise UserError(
            f"adversary.fraction = {experiment.adversary.fraction:g}: malicious clients are for "
            f"simulations; leave it out"
        )
    if experiment.devices.step_seconds:
        raise UserError(
            f"devices.step_seconds = {experiment.devices.step_seconds:g}: virtual devices are for "
            f"simulations; leave it out"
        )
    if experiment.engine.kind != "local":
        raise UserError(
            f"engine.kind = '{experiment.engine.kind}' is only for simulations; omit it"
        )
    size = len(experiment.to_toml().encode())
    if size > EXPERIMENT_BYTES:
        raise UserError(
            f"the experiment has {size:,} bytes with its defaults; expected at most "
            f"{EXPERIMENT_BYTES:,}, which nodes accept: shorten its texts and lists"
        )
