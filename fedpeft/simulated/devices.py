"""Simulated devices: how fast a client trains and sends, when it can be asked, when it vanishes.

All of it derives from the seed, so a client, a run that continues and the server of a simulation
agree without a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.randomness import generator

#: Virtual seconds in which the clients that can be asked stay the same.
SLOT = 600.0


@dataclass(frozen=True)
class Device:
    """A client's device: seconds per local step, and bytes per second up and down."""

    step_seconds: float
    up: float
    down: float

    def seconds(self, steps: int, received: int, sent: int) -> float:
        """Return the seconds from a request of so many bytes to the end of its reply."""
        return received / self.down + steps * self.step_seconds + sent / self.up

    def steps_within(self, seconds: float, received: int, sent: int) -> int:
        """Return how many steps end before so many seconds have passed, at least 1."""
        left = seconds - self.seconds(0, received, sent)
        return max(1, ceil(left / self.step_seconds) - 1)


def device_of(experiment: Experiment, client: int) -> Device:
    """Return the device of a client, log-normal around the medians of ``[devices]``."""
    devices = experiment.devices
    speed, network = generator(experiment.seed, "device", 0, client).standard_normal(2)
    factor = exp(devices.rate_spread * network)
    return Device(
        devices.step_seconds * exp(devices.spread * speed),
        devices.up * factor or inf,
        devices.down * factor or inf,
    )


def vanishes(experiment: Experiment, number: int, client: int) -> bool:
    """Return whether a client that is asked to train in round ``number`` never replies."""
    draw = generator(experiment.seed, "dropout", number, client)
    return bool(draw.random() < experiment.devices.dropout)


def reachable(experiment: Experiment, seconds: float) -> np.ndarray:
    """Return the clients that can be asked at a virtual time, bool [clients]."""
    draw = generator(experiment.seed, "availability", int(seconds // SLOT))
    return draw.random(experiment.federation.clients) < experiment.devices.availability
