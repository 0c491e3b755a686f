"""An update as levels that add up, with two facts about it, and the mean of a sum of updates.

All clients of a round share the ``clip_norm`` of norms, the rotation, and the scale of weights. The
facts are summed in the same way, so the server learns their means only: the norm before it was
shortened, from which it chooses the next clip_norm, and the training loss.

With noise of the clients for whole clients (``privacy.client_noise = "secure"``) the levels are
whole steps of the same grid, of a bounded norm (``fedpeft.wire.steps``), plus the client's part of
Skellam noise, modulo 2^w; clip_norm is ``privacy.client_clip``, and both facts are zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.privacy.noise import Words
from fedpeft.privacy.plan import client_plan
from fedpeft.privacy.skellam import ring_bits, skellam, variance
from fedpeft.privacy.updates import clipped
from fedpeft.randomness import generator
from fedpeft.secure import ring
from fedpeft.secure.masks import FACT_BITS, FACTS, masked_size
from fedpeft.secure.thresholds import MOST, Sharing, sharing_of, threshold
from fedpeft.wire import steps, uniform
from fedpeft.wire.codecs import rate_of

_ONE = 1 << 32  # of a fact, relative to its largest value
NORMS = 16.0  # largest norm that is told, in bounds
LOSSES = 64.0  # largest loss that is told
_MARGIN = 1.5  # the next clip_norm, in means of the norms
assert 32 + MOST.bit_length() <= FACT_BITS  # sums of all clients of a round


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
    noise: Words | None = None,
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
        noise: of the client, where it protects whole clients; a change that is not finite then
            counts as zero, and share is 1.

    Raises:
        ValueError: a number is not finite; or noise is missing, which is never left out silently.
    """
    if experiment.privacy.distributed:
        if noise is None:
            raise ValueError("privacy.client_noise = 'secure': the update has no noise")
        return _noised(experiment, number, client, change, clip_norm, noise)
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


def _noised(
    experiment: Experiment,
    number: int,
    client: int,
    change: np.ndarray,
    clip_norm: float,
    noise: Words,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of a clipped change plus the client's noise, modulo 2^64, and zeros.

    Guarantee: the steps have a squared norm of at most ``steps.norm_limit``, and steps of zero are
    zero. Noise of ``noise_variance`` is in each of the honest clients' parts of a sum.
    """
    bits, size = bits_of(experiment), len(change)
    own = generator(experiment.seed, "sum-rounding", number, client)  # public, as is any rounding
    turned = uniform.rotated(clipped(change, clip_norm)[0], _rotation(experiment, number))
    whole = steps.bounded(turned / uniform.distance(size, bits, clip_norm), bits, own)
    whole += skellam(noise_variance(experiment, size), size, noise)
    return whole.astype(np.uint64), np.zeros(FACTS, np.uint64)


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
    bits, shared = bits_of(experiment), _rotation(experiment, number)
    if experiment.privacy.distributed:
        size = len(levels)
        signed = ring.signed(levels, width(experiment, experiment.clients_summed, size))
        scale = uniform.distance(size, bits, clip_norm)
        total = uniform.turned_back(signed * scale, shared)
    else:
        total = uniform.decode(levels, clients, bits, clip_norm, shared)
    norm, loss = facts.astype(np.float64) / _ONE / clients
    return Mean(total / shares, norm * NORMS * clip_norm, loss * LOSSES)


def bits_of(experiment: Experiment) -> int:
    """Return the bits of a number's level."""
    return int(rate_of(experiment.wire.up, "uniform") or 0)


def width(experiment: Experiment, clients: int, size: int) -> int:
    """Return the bits of a sum of levels of ``clients``, of ``size`` numbers.

    With noise, of all clients that the experiment asks, so that the server knows it in advance.
    """
    if not experiment.privacy.distributed:
        return ring.width(clients, uniform.count_of(bits_of(experiment)))
    asked = experiment.clients_summed
    furthest = asked * steps.furthest(bits_of(experiment))
    return ring_bits(asked * noise_variance(experiment, size), furthest)


def sharing_for(experiment: Experiment, clients: int = 0) -> Sharing:
    """Return who shares with how many in a sum, and how many must stay.

    These are for as many clients as the experiment says: a shorter list of the server's does not
    change who must stay, or how many clients a sum has at least.

    Args:
        experiment: all settings.
        clients: of the sum; 0 = all that are asked.

    Raises:
        UserError: the numbers are not safe.
    """
    asked, secure = experiment.clients_summed, experiment.secure
    survivors = threshold(asked, secure.colluders, secure.threshold)
    return sharing_of(asked, secure.colluders, survivors, clients)


def honest(experiment: Experiment) -> int:
    """Return how many honest clients are in every sum that a malicious server can read, at least.

    Fewer than the clients that do not collude: a server that tells clients different lists of
    survivors reads a sum over fewer clients, see ``fedpeft.secure.thresholds``.
    """
    return sharing_for(experiment).least


def noise_variance(experiment: Experiment, size: int) -> float:
    """Return the variance of one client's noise, in squared steps, for an update of ``size``.

    The noise of ``honest`` clients alone suffices for the mechanism that ledgers are charged for:
    colluders know theirs, and the server may leave out other clients. A sum of more has more.
    """
    sigma = client_plan(experiment).mechanism.noise_multiplier
    limit = steps.norm_limit(size, bits_of(experiment))
    return variance(sigma, limit) / honest(experiment)


def update_bytes(experiment: Experiment, size: int) -> int:
    """Return the bytes of a masked update of ``size`` numbers."""
    return masked_size(size, width(experiment, experiment.clients_summed, size))


def first_clip_norm(experiment: Experiment, size: int, count: int) -> float:
    """Return the clip norm of the first round: a setting, or a guess.

    The setting is ``privacy.client_clip`` with noise of the clients, otherwise
    ``federation.max_update_norm``.

    Steps of AdamW change a number by about the learning rate, steps of gradient descent a vector by
    the learning rate times the norm of the gradient; both partly cancel.
    """
    given, local = experiment.federation.max_update_norm, experiment.local
    if experiment.privacy.distributed:
        return experiment.privacy.client_clip
    if given != "auto" and given:
        return float(given)
    assert local.lr is not None
    step = size**0.5 if local.optimizer == "adamw" else local.max_grad_norm or 1.0
    return float(local.lr * step * count**0.75)


def next_clip_norm(experiment: Experiment, clip_norm: float, norm: float) -> float:
    """Return the clip norm of the round after one with this clip norm and mean norm."""
    given = experiment.federation.max_update_norm
    fixed = given not in ("auto", 0) or experiment.privacy.distributed
    return clip_norm if fixed or not norm else _MARGIN * norm


def rounding_error(
    experiment: Experiment, size: int, clients: int, clip_norm: float, norm: float
) -> float:
    """Return the expected error of rounding a mean, relative to the norm of an update.

    A number far below the distance d of the levels lies in the middle of two of them, so rounding
    it has a variance of d²/4; larger numbers have less. With noise, the error is a part of that of
    the mechanism, and 0 here.

    Args:
        experiment: all settings.
        size: numbers of an update, S.
        clients: of the sum.
        clip_norm: at which clients shortened their updates.
        norm: mean norm of the updates, see ``Mean``; 0 = not known, which returns 0.
    """
    if experiment.privacy.distributed or not norm:
        return 0.0
    spread = uniform.distance(size, bits_of(experiment), clip_norm) / 2
    return float(spread * np.sqrt(size / clients) / norm)


def _rotation(experiment: Experiment, number: int) -> np.random.Generator:
    return generator(experiment.seed, "sum-rotation", number)
