"""The rounds of a run whose noise is correlated by a matrix factorization.

A round: ``charge`` it, take the updates of its ``clients``, and add ``noise``, which first records
in the ledger who took part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.factorization import Banded, Blt, Factorization, Matrix
from fedpeft.privacy.ledger import LedgerDamaged, PrivacyLedger
from fedpeft.privacy.ledger_store import Charge
from fedpeft.privacy.noise import Noise
from fedpeft.privacy.plan import Plan
from fedpeft.privacy.turns import CLIENTS, Note, Turn, whole_note
from fedpeft.runs.checkpoints import PAST
from server.privacy.schedule import Schedule

#: Names in the checkpoint, beside PAST: the matrix, and the id of the whole run's charge.
MATRIX, WHOLE = "privacy.matrix", "privacy.whole"


class MatrixRounds:
    """All rounds of a run as one Gaussian mechanism.

    Guarantee: with sigma > 0 and a secure noise source, all rounds together are the Gaussian
    mechanism with multiplier sigma for adding or removing one client (``factorization``), which is
    in the ledger before any client is asked. Who took part is there before the noise is drawn. A
    round that is repeated after that, with new noise, reveals one more row of C x + z: a Gaussian
    mechanism with sigma * sensitivity / row_sensitivity, which is charged first.
    """

    def __init__(self, experiment: Experiment, plan: Plan, ledger: PrivacyLedger) -> None:
        assert plan.factorization
        self.experiment, self.plan, self._ledger = experiment, plan, ledger
        self.factorization = plan.factorization
        self._past: np.ndarray | None = None  # [memory, P]
        self._whole: int | None = None
        self._turn: Turn | None = None
        federation, separation = experiment.federation, self.factorization.limits.separation
        self._schedule = Schedule(
            federation.clients, experiment.clients_per_round, separation, experiment.seed
        )

    @property
    def update_noise(self) -> float:
        """Standard deviation of z over the clip."""
        return self.plan.mechanism.noise_multiplier * self.factorization.sensitivity

    @property
    def detail(self) -> str:
        """The matrix and its limits, for the privacy statement."""
        matrix, limits = self.factorization.matrix, self.factorization.limits
        if isinstance(matrix, Banded):
            bands = len(matrix.coefficients)
            name = f"banded Toeplitz with {bands} band{'s' * (bands > 1)}"
        else:
            name = f"BLT with {matrix.memory} buffer{'s' * (matrix.memory > 1)}"
        return (
            f", {name}; each client takes part in at most {limits.participations} of "
            f"{limits.rounds} rounds, at least {limits.separation} apart"
        )

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients of the charged round, in order."""
        assert self._turn
        return self._turn.clients

    def charge(self, number: int, note: Note, draw: str | None) -> None:
        """Charge the whole run before round 1, and a round that is repeated; check its turn.

        Args:
            number: of the round, from 1.
            note: facts for the ledger.
            draw: see ``PrivacyLedger.charge``.

        Raises:
            BudgetSpent: the charge would exceed the budget; nothing is charged.
            TurnRefused: see ``Turn.require``.
        """
        if number == 1:
            self._whole = self._charge_run(note, draw)
        assert self._whole, "restored from the checkpoint"
        clients = tuple(self._schedule.of(number).tolist())
        run, digest = self.experiment.digest, self.factorization.digest
        self._turn = turn = Turn(self._whole, digest, run, number, clients)
        for _ in range(turn.unpaid(self._ledger.charges("client"), draw)):
            self._add(self._row, number, turn.repeat_note, draw)
        turn.require(self._ledger.charges("client"), draw)

    def noise(self, size: int, draw: str | None, source: Noise) -> Noise:
        """Record the charged round's turn, and return its correlated noise [P] for one use.

        Raises:
            TurnRefused: see ``Turn.require``.
        """
        turn, self._turn = self._turn, None
        assert turn
        nothing = replace(self.plan.mechanism, steps=0)
        self._add(nothing, turn.round, turn.note, draw, turn)
        matrix = self.factorization.matrix
        past = np.zeros((matrix.memory, size)) if self._past is None else self._past
        numbers, self._past = matrix.advance(source.normal(size), past)
        return _Drawn(numbers)

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays that a resumed run needs; the noise must stay secret."""
        if self._past is None or self._whole is None:
            return {}
        matrix = _to_array(self.factorization.matrix)
        return {MATRIX: matrix, PAST: self._past, WHOLE: np.array([self._whole])}

    def restore(self, state: Mapping[str, np.ndarray], rounds: int) -> None:
        """Restore the arrays of ``state`` after a number of rounds.

        The matrix is that of the checkpoint: another version of scipy may compute other digits.

        Raises:
            LedgerDamaged: the ledger lacks the run's charge or the turns of these rounds.
        """
        if not rounds:
            return
        self._whole, self._past = int(state[WHOLE][0]), state[PAST]
        matrix = _of_array(state[MATRIX], self.experiment.privacy.mechanism)
        self.factorization = Factorization(matrix, self.factorization.limits)
        charges = self._ledger.charges("client")
        whole = [each for each in charges if each.id == self._whole]
        turns = {each.round for each in charges if self._is_turn(each, self._whole)}
        if (
            not whole
            or whole[0].note.get("factorization") != self.factorization.digest
            or not turns >= {*range(1, rounds + 1)}
        ):
            raise LedgerDamaged(self._ledger.path, f"it lacks some of the {rounds} rounds done")

    def _charge_run(self, note: Note, draw: str | None) -> int:
        """Charge all rounds and return the charge's id, or that of an earlier, unused charge."""
        note = {**whole_note(self.experiment.privacy.mechanism, self.factorization), **note}
        key = self.plan.mechanism, self.experiment.digest, note
        if (unused := self._last(key, draw, used=False)) is None:
            self._add(self.plan.mechanism, 1, note, draw)
            unused = self._last(key, draw, used=draw is not None)
        assert unused, "charged above"
        return unused

    def _last(self, key: tuple[Mechanism, str, Note], draw: str | None, used: bool) -> int | None:
        """Return the id of the last charge of a key and draw, if ``used`` also with turns."""
        charges = self._ledger.charges("client")
        found = [
            each.id
            for each in charges
            if (each.mechanism, each.run, each.note) == key
            and each.draw == draw
            and (used or not any(self._is_turn(turn, each.id) for turn in charges))
        ]
        return found[-1] if found else None

    def _is_turn(self, charge: Charge, whole: int) -> bool:
        return charge.note.get("whole") == whole and CLIENTS in charge.note

    @property
    def _row(self) -> Mechanism:
        """The mechanism of one repeated round."""
        sigma = self.update_noise / self.factorization.row_sensitivity
        return replace(self.plan.mechanism, noise_multiplier=sigma)

    def _add(
        self,
        mechanism: Mechanism,
        number: int,
        note: Note,
        draw: str | None,
        turn: Turn | None = None,
    ) -> None:
        plan, run = self.plan, self.experiment.digest
        self._ledger.charge(
            "client",
            mechanism,
            plan.delta,
            plan.budget,
            run=run,
            round_number=number,
            note=note,
            draw=draw,
            turn=turn,
        )


class _Drawn:
    """Numbers [P] that were drawn already, as a source of noise."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers

    def normal(self, size: int) -> np.ndarray:
        """Return the numbers."""
        assert size == len(self._numbers)
        return self._numbers

    def uniform(self, size: int) -> np.ndarray:
        """Raise AssertionError: what a round releases has normal noise only."""
        raise AssertionError("correlated noise is drawn as normal numbers")


def _to_array(matrix: Matrix) -> np.ndarray:
    """Return a matrix as float64 [bands] or [2, d]."""
    if isinstance(matrix, Banded):
        return np.array(matrix.coefficients)
    return np.array([matrix.scales, matrix.decays])


def _of_array(array: np.ndarray, kind: str) -> Matrix:
    if kind == "banded":
        return Banded(tuple(array.tolist()))
    scales, decays = array.tolist()
    return Blt(tuple(scales), tuple(decays))
