"""Rounds of a mechanism that the ledger charged for a whole run at once.

A matrix factorization is one Gaussian mechanism for all rounds, whose sensitivity assumes limits on
each client's participation. Its ledger has three kinds of charges:

- one for the whole run, before its first round, noting the factorization and the limits;
- a ``Turn`` of zero steps for each round before its noise is drawn, noting the clients;
- one for each round that is repeated with new noise after the first noise may have been published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedpeft.errors import UserError
from fedpeft.privacy.factorization import Factorization
from fedpeft.privacy.ledger_store import Charge

Note = dict[str, str | float]
CLIENTS = "clients"  # key of a turn's note, with the numbers of its clients
_REPEATS = "repeats"


class TurnRefused(UserError):
    """The round breaks what the whole run's charge assumes; nothing was written."""


def whole_note(kind: str, factorization: Factorization) -> Note:
    """Return the note of a charge for a whole run."""
    limits = factorization.limits
    return {
        "mechanism": kind,
        "factorization": factorization.digest,
        "rounds": limits.rounds,
        "separation": limits.separation,
        "participations": limits.participations,
    }


@dataclass(frozen=True)
class Turn:
    """A round of a whole run's mechanism.

    Attributes:
        whole: id of the whole run's charge.
        factorization: digest of the factorization in use.
        run: name of the run.
        round: number of the round.
        clients: those whose updates the round may contain.
    """

    whole: int
    factorization: str
    run: str
    round: int
    clients: tuple[int, ...]

    @property
    def note(self) -> Note:
        """The note of the turn's charge."""
        return {"whole": self.whole, CLIENTS: " ".join(map(str, self.clients))}

    @property
    def repeat_note(self) -> Note:
        """The note of a charge for repeating the round with new noise."""
        return {"whole": self.whole, _REPEATS: self.round}

    def unpaid(self, charges: Sequence[Charge], draw: str | None) -> int:
        """Return how many times the round drew noise without a charge for repeating it.

        Noise of the same ``draw``, which is not None, will be the same again.
        """
        turns = [each for each in self._turns(charges) if each.round == self.round]
        if draw is not None and any(each.draw == draw for each in turns):
            return 0
        return len(turns) - sum(each.note == self.repeat_note for each in charges)

    def require(self, charges: Sequence[Charge], draw: str | None = None) -> None:
        """Check the turn against the charges of its unit.

        Raises:
            TurnRefused: the whole run was not charged, or with another factorization; the round is
                beyond it, or needs a charge for repeating it; or a client takes part too early
                after its last round, or too often.
        """
        whole = next((each for each in charges if each.id == self.whole), None)
        if whole is None or whole.run != self.run or "factorization" not in whole.note:
            raise self._refused(f"charge {self.whole} is not that of this run")
        if whole.note["factorization"] != self.factorization:
            raise self._refused("another factorization was charged")
        rounds, separation, most = (
            int(whole.note[key]) for key in ("rounds", "separation", "participations")
        )
        if not 1 <= self.round <= rounds:
            raise self._refused(f"the charge is for {rounds} rounds")
        if self.unpaid(charges, draw) > 0:
            raise self._refused("its noise was drawn before, and repeating it was not charged")
        self._require_limits(charges, separation, most)

    def _require_limits(self, charges: Sequence[Charge], separation: int, most: int) -> None:
        rounds: dict[int, set[int]] = {client: set() for client in self.clients}
        for turn in self._turns(charges):
            for client in map(int, str(turn.note[CLIENTS]).split()):
                if client in rounds and turn.round != self.round:
                    rounds[client].add(turn.round)
        for client, taken in rounds.items():
            near = [number for number in taken if abs(number - self.round) < separation]
            if near:
                raise self._refused(
                    f"client {client} takes part in round {max(near)} and its rounds must be at "
                    f"least {separation} apart"
                )
            if len(taken) + 1 > most:
                raise self._refused(f"client {client} took part {len(taken)} times, at most {most}")

    def _turns(self, charges: Sequence[Charge]) -> list[Charge]:
        return [
            each
            for each in charges
            if each.note.get("whole") == self.whole and CLIENTS in each.note
        ]

    def _refused(self, why: str) -> TurnRefused:
        return TurnRefused(f"round {self.round} is refused by the privacy ledger: {why}")
