"""An update as levels that add up, with two facts about it, and the mean of a sum of updates.

All clients of a round share the ``clip_norm`` of norms, the rotation, and the scale of weights. The
facts are summed in the same way, so the server learns their means only: the norm before it was
shortened, from which it chooses the next clip_norm, and the training loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.randomness import generator
from fedpeft.secure import ring
from fedpeft.secure.masks import FACT_BITS, masked_size
from fedpeft.wire import uniform
from fedpeft.wire.codecs import rate_of

_ONE = 1 << 32  # of a fact, relative to its largest value
NORMS = 16.0  # largest norm that is told, in bounds
LOSSES = 64.0  # largest loss that is told
_MARGIN = 1.5  # the next clip_norm, in means of the norms
assert FACT_BITS >= 32 + 8  # sums of 255 clients


@dataclass(frozen=True)
class Mean:
    """What the server learns of a round.

    Attributes:
        change: weighted mean of the updates [S], float64.
        norm: mean norm of the updates before they were shortened.
        loss: mean training loss.
    """

    change: np.ndarray
    norm: float
    loss: float


def encoded(
    experiment: Experiment,
    number: int,
    client: int,
    change: np.ndarray,
    loss: float,
    clip_norm: float,
    share: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels [S] of a change [S] and its facts [FACTS], uint64.

    Args:
        experiment: all settings.
        number: of the round.
        client: number of the client.
        change: of the client's vector, float64.
        loss: the client's training loss; 0 with privacy.
        clip_norm: the norm at which a longer change is clipped.
        share: the client's weight, relative to the largest of the round.

    Raises:
        ValueError: a number is not finite.
    """
    norm = float(np.linalg.norm(change))
    if not np.isfinite([norm, loss]).all():
        raise ValueError("the update has numbers that are not finite")
    own = generator(experiment.seed, "sum-rounding", number, client)
    short = change * min(1.0, clip_norm / norm) * share if norm else change
    levels = uniform.encode(
        short, bits_of(experiment), clip_norm, _rotation(experiment, number), own
    )
    relative = np.clip([norm / clip_norm / NORMS, loss / LOSSES], 0, 1)
    return levels, np.round(relative * _ONE).astype(np.uint64)


def decoded(
    experiment: Experiment,
    number: int,
    levels: np.ndarray,
    facts: np.ndarray,
    clients: int,
    clip_norm: float,
    shares: float,
) -> Mean:
    """Return the means of the updates of ``clients`` from their sums, see ``encoded``.

    Args:
        experiment: all settings.
        number: of the round.
        levels: sum of the levels [S].
        facts: sum of the facts [FACTS].
        clients: how many were summed.
        clip_norm: as for ``encoded``.
        shares: sum of the clients' shares.
    """
    total = uniform.decode(
        levels, clients, bits_of(experiment), clip_norm, _rotation(experiment, number)
    )
    norm, loss = facts.astype(np.float64) / _ONE / clients
    return Mean(total / shares, norm * NORMS * clip_norm, loss * LOSSES)


def bits_of(experiment: Experiment) -> int:
    """Return the bits of a number's level."""
    return int(rate_of(experiment.wire.up, "uniform") or 0)


def width(experiment: Experiment, clients: int) -> int:
    """Return the bits of a sum of levels of ``clients``."""
    return ring.width(clients, uniform.count_of(bits_of(experiment)))


def update_bytes(experiment: Experiment, size: int) -> int:
    """Return the bytes of a masked update of ``size`` numbers."""
    return masked_size(size, width(experiment, experiment.clients_summed))


def first_clip_norm(experiment: Experiment, size: int, steps: int) -> float:
    """Return the clip norm of the first round: ``federation.max_update_norm``, or a guess.

    Steps of AdamW change a number by about the learning rate, steps of gradient descent a vector by
    the learning rate times the norm of the gradient; both partly cancel.
    """
    given, local = experiment.federation.max_update_norm, experiment.local
    if given != "auto" and given:
        return float(given)
    assert local.lr is not None
    step = size**0.5 if local.optimizer == "adamw" else local.max_grad_norm or 1.0
    return float(local.lr * step * steps**0.75)


def next_clip_norm(experiment: Experiment, clip_norm: float, norm: float) -> float:
    """Return the clip norm of the round after one with this clip norm and mean norm."""
    given = experiment.federation.max_update_norm
    return clip_norm if given not in ("auto", 0) or not norm else _MARGIN * norm


def _rotation(experiment: Experiment, number: int) -> np.random.Generator:
    return generator(experiment.seed, "sum-rotation", number)
