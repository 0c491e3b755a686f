"""Central differential privacy: the server samples clients, clips their updates and adds noise.

A round: ``charge`` the server's ledger, ``sample`` the clients, and pass the ``mean_update`` of
those that replied to the strategy. Everything computed from the mean is post-processing.
``matrix_rounds`` has the rounds of mechanisms that correlate their noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, calibrate
from fedpeft.privacy.factorize import factorize
from fedpeft.privacy.ledger import LedgerDamaged, PrivacyLedger
from fedpeft.privacy.noise import Noise, noise_of, poisson
from fedpeft.privacy.plan import Plan, client_delta, limits
from fedpeft.privacy.statement import Composition, statement
from fedpeft.privacy.updates import AdaptiveClip, noisy_mean
from server.privacy.matrix_rounds import MatrixRounds

#: Name of the adaptive clip in the checkpoint.
CLIP = "privacy.clip"


class CentralPrivacy:
    """Protection of the clients of one run by the server.

    Guarantee: with a sigma > 0 and without ``privacy.reproducible``, a round is one run of the
    Poisson-subsampled Gaussian mechanism over the fixed population 0 .. K - 1, and is in the
    ledger before any client is asked. A client that is offline, refuses or fails contributes
    zero. The task vectors that the server publishes are protected against anyone who does not see
    the server's traffic: the sample has to stay secret.

    With ``privacy.mechanism`` "banded" or "blt", clients take turns by a public order, and all
    rounds together are one Gaussian mechanism (``MatrixRounds``).
    """

    def __init__(self, experiment: Experiment, plan: Plan, path: Path) -> None:
        """Open or create the server's ledger; called by ``of``.

        Raises:
            LedgerDamaged: the ledger lacks what was written to it.
            UserError: too few clients for an adaptive clip, or the ledger cannot be used.
        """
        self.experiment, self.plan = experiment, plan
        self.clip = experiment.privacy.client_clip
        self._adaptive = _adaptive(experiment, plan)
        self._ledger = PrivacyLedger(path, owner="server", data=_population(experiment))
        matrix = plan.factorization is not None
        self._matrix = MatrixRounds(experiment, plan, self._ledger) if matrix else None
        self._charged: tuple[int, int, str | None] | None = None  # (round, P, draw)

    @classmethod
    def of(cls, experiment: Experiment, folder: Path) -> CentralPrivacy | None:
        """Return the protection that an experiment asks for; None without central privacy.

        The ledger is in ``privacy.ledger``, or in the run's ``folder``.

        Raises:
            UserError: see ``central_plan`` and ``__init__``.
        """
        if not experiment.privacy.central:
            return None
        ledgers = Path(experiment.privacy.ledger or folder / "privacy")
        return cls(experiment, central_plan(experiment), ledgers / "server.sqlite")

    def charge(self, number: int, start: np.ndarray) -> dict[str, Any]:
        """Charge the ledger for a round from the task vector [P]; return the statement.

        Raises:
            BudgetSpent: the round would exceed the budget; nothing is charged.
            LedgerDamaged: the privacy spent so far is unknown.
            TurnRefused: a client would take part too early or too often.
        """
        plan, reproducible = self.plan, self.experiment.privacy.reproducible
        note: dict[str, str | float] = {"clipping": self._clipping, "clip": self.clip}
        draw = self._draw(number, start) if reproducible else None
        if self._matrix:
            self._matrix.charge(number, note, draw)
        else:
            self._ledger.charge(
                "client",
                plan.mechanism,
                plan.delta,
                plan.budget,
                run=self.experiment.digest,
                round_number=number,
                note=note,
                draw=draw,
            )
        self._charged = number, len(start), draw
        composition = Composition.of(self._ledger.charges("client"))
        facts = (plan.delta, self.clip, self._clipping)
        if self._matrix:
            return statement("client", composition, *facts, "turns", self._matrix.detail)
        return statement("client", composition, *facts)

    def sample(self, pool: np.ndarray, number: int) -> list[int]:
        """Return the sampled clients that are in the pool, in client order; possibly none.

        Each client of the population is sampled with probability q, independently of the others
        and of the pool; or it is the client's turn, in the charged round, whatever the pool.
        """
        if self._matrix:
            return np.intersect1d(self._matrix.clients, pool).tolist()
        noise = self._noise("client-sample", number)
        population, rate = self.experiment.federation.clients, self.plan.mechanism.sampling_rate
        return np.intersect1d(poisson(noise, population, rate), pool).tolist()

    def mean_update(self, updates: Sequence[np.ndarray]) -> np.ndarray:
        """Return the noisy mean of the charged round's updates [P], float64; adapt the clip.

        Raises:
            RuntimeError: the round was not charged, or its mean was returned before.
        """
        if self._charged is None:
            raise RuntimeError("a round is charged once for each mean of its updates")
        (number, size, draw), self._charged = self._charged, None
        rows = np.reshape(updates, (len(updates), size))
        noise, adaptive = self._noise("client-noise", number), self._adaptive
        sigma = adaptive.update_noise if adaptive else self.plan.mechanism.noise_multiplier
        if self._matrix:
            sigma, noise = self._matrix.update_noise, self._matrix.noise(size, draw, noise)
        mean = noisy_mean(rows, self.clip, sigma, self.experiment.clients_per_round, noise)
        if adaptive:
            self.clip = adaptive.adapted(self.clip, rows, noise)
        return mean

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays that a resumed run needs, for the checkpoint."""
        if self._matrix:
            return self._matrix.state()
        return {CLIP: np.array([self.clip])} if self._adaptive else {}

    def restore(self, state: Mapping[str, np.ndarray], rounds: int) -> None:
        """Restore the arrays of ``state`` after a number of rounds; ignore other names.

        Raises:
            LedgerDamaged: the ledger does not hold these rounds.
        """
        run = self.experiment.digest
        charged = {charge.round for charge in self._ledger.charges("client") if charge.run == run}
        if not charged >= {*range(1, rounds + 1)}:
            raise LedgerDamaged(self._ledger.path, f"it lacks some of the {rounds} rounds done")
        if self._matrix:
            self._matrix.restore(state, rounds)
        if CLIP in state:
            self.clip = float(state[CLIP][0])

    @property
    def _clipping(self) -> str:
        adaptive = self._adaptive
        return f"adaptive to quantile {adaptive.quantile:g}" if adaptive else "fixed"

    def _noise(self, purpose: str, number: int) -> Noise:
        experiment = self.experiment
        return noise_of(experiment.privacy.reproducible, experiment.seed, purpose, number)

    def _draw(self, number: int, start: np.ndarray) -> str:
        """Return a digest of what determines the random numbers of a reproducible round."""
        total = hashlib.sha256(start.tobytes())
        total.update(f"{self.experiment.digest}|{number}|server".encode())
        return total.hexdigest()


def _population(experiment: Experiment) -> str:
    """Return the SHA-256 of the settings that determine the clients and their examples."""
    keys = {"seed", "task", "partition"}
    parts = [experiment.model_dump_json(include=keys), str(experiment.federation.clients)]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def central_plan(experiment: Experiment) -> Plan:
    """Return the mechanism of a round, with noise as given or calibrated for all rounds.

    With a matrix factorization, it is the mechanism of all rounds.

    Raises:
        UserError: delta is not below 1 / clients, as with a single client and no delta given;
            there are too few clients for an adaptive clip, or too many rounds for a factorization.
    """
    privacy, federation = experiment.privacy, experiment.federation
    epsilon, sigma, given = privacy.of_clients()
    delta = client_delta(federation.clients, given)
    rate, steps = experiment.clients_per_round / federation.clients, federation.rounds
    factorization = None
    if privacy.mechanism != "gaussian":
        factorization = factorize(privacy.mechanism, limits(experiment))
        rate, steps = 1.0, 1
    if sigma is None:
        assert epsilon is not None, "refused by fedpeft.experiment.contradictions"
        sigma = calibrate(epsilon, delta, rate, steps)
    plan = Plan(Mechanism(sigma, rate, 1), delta, privacy.budget or epsilon, factorization)
    _adaptive(experiment, plan)
    return plan


def _adaptive(experiment: Experiment, plan: Plan) -> AdaptiveClip | None:
    privacy = experiment.privacy
    if not privacy.client_quantile:
        return None
    if not privacy.client_clip:
        raise UserError(
            f"privacy.client_quantile = {privacy.client_quantile:g} and privacy.client_clip = 0: "
            f"an adaptive clip needs one to start from; expected client_clip above 0"
        )
    sigma = plan.mechanism.noise_multiplier
    return AdaptiveClip(privacy.client_quantile, experiment.clients_per_round, sigma)
