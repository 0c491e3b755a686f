"""One sum under masks: the clients that add up their updates, and what they sent for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flwr.app import Message

from fedpeft.profiling import phase
from fedpeft.secure.keys import Peer
from fedpeft.secure.masks import request_context, round_context, run_context
from fedpeft.secure.parts import to_numbers
from fedpeft.secure.thresholds import Sharing
from fedpeft.updates import sums
from fedpeft.updates.sums import Mean
from fedpeft.wire.messages import (
    RECORD,
    PrepareReply,
    PrepareRequest,
    Request,
    UnmaskReply,
    UnmaskRequest,
    from_fields,
    label,
)
from server.members.nodes import Node
from server.run import Run
from server.secure.unmasking import (
    Masked,
    Prepared,
    checked_shares,
    enough,
    read_prepared,
    unmasked,
)


@dataclass
class Bucket:
    """The clients of a round whose updates are summed.

    Attributes:
        run: the run.
        number: of the round, from 1.
        nodes: of the clients, in order.
        clip_norm: at which clients clip their updates.
        prepared: of the members, those that made keys and shares.
        survivors: those whose masked update arrived; None before clients were told.
    """

    run: Run
    number: int
    nodes: dict[int, Node]
    clip_norm: float
    prepared: dict[int, Prepared] = field(default_factory=dict)
    survivors: list[int] | None = None
    _request_context: str = ""

    @property
    def threshold(self) -> int:
        """How many members must stay to the end."""
        return sums.sharing_for(self.run.experiment).survivors

    @property
    def rules(self) -> Sharing:
        """Who shares with how many; there are ``threshold`` clients at least."""
        return sums.sharing_for(self.run.experiment, len(self.nodes))

    @property
    def members(self) -> dict[int, Node]:
        """The clients that prepared the round, or nobody if they are fewer than the threshold."""
        if len(self.prepared) < self.threshold:
            return {}
        return {client: self.nodes[client] for client in self.prepared}

    def preparation(self) -> PrepareRequest:
        """Return what all of its clients are asked first."""
        return PrepareRequest(round=self.number, label=self._label, peers=self._peers)

    def request(self, client: int, vector: bytes, reference: bytes) -> Request:
        """Return what a member is asked to train."""
        self._request_context = request_context(
            self._round_context, vector, self.clip_norm, self._max_weight
        )
        return Request(
            vector=vector,
            round=self.number,
            label=self._label,
            reference=reference,
            members=b"".join(made.member.to_bytes() for made in self.prepared.values()),
            sealed=b"".join(
                made.sealed[client] for made in self.prepared.values() if client in made.sealed
            ),
            clip_norm=self.clip_norm,
            max_weight=self._max_weight,
        )

    def question(self) -> UnmaskRequest:
        """Return what survivors are asked to reveal."""
        listed = to_numbers(self.survivors or [])
        return UnmaskRequest(round=self.number, label=self._label, survivors=listed)

    def read_prepared(self, client: int, reply: Message) -> Prepared:
        """Return the keys and shares of a client; ValueError if they are none."""
        return self._checked(client, from_fields(PrepareReply, reply.content.get(RECORD)))

    def _checked(self, client: int, sent: PrepareReply) -> Prepared:
        peer, context = Peer.from_bytes(self.nodes[client].peer), self._round_context
        with phase("unmasking"):
            return read_prepared(sent, peer, [*self.nodes], context, self.rules)

    def read_shares(self, client: int, reply: Message) -> dict[int, bytes]:
        """Return the shares that a client revealed, by owner; ValueError for wrong ones."""
        sent = from_fields(UnmaskReply, reply.content.get(RECORD))
        with phase("unmasking"):
            return checked_shares(sent.shares, client, self.prepared, {*(self.survivors or ())})

    def mean(
        self, masked: Mapping[int, Masked], revealed: Mapping[int, Mapping[int, bytes]]
    ) -> Mean:
        """Return the mean of the masked updates of the survivors.

        Args:
            masked: of the survivors.
            revealed: shares by holder and owner.

        Raises:
            ValueError: too few shares of a client, or it prepared garbage; no other sum is
                possible.
        """
        shared = enough(self.prepared, revealed, self.rules.needed)
        experiment = self.run.experiment
        bits = sums.width(experiment, len(self.nodes), self.run.runtime.parameters.shared.size)
        levels, facts = unmasked(masked, self.prepared, shared, self._request_context, bits)
        shares = sum(self._weight(self.nodes[client]) for client in masked) / self._max_weight
        return sums.decoded(
            experiment, self.number, levels, facts, len(masked), self.clip_norm, shares
        )

    def state(self) -> dict[str, Any]:
        """Return what a process that continues the round needs."""
        prepared = {
            client: {
                "key": made.member.key.hex(),
                "holder_seed": made.member.holder_seed.hex(),
                "signature": made.member.signature.hex(),
                "sealed": b"".join(made.sealed.values()).hex(),
                "digests": b"".join(b"".join(each) for each in made.digests.values()).hex(),
            }
            for client, made in self.prepared.items()
        }
        return {"peers": self._peers.hex(), "prepared": prepared, "survivors": self.survivors}

    def is_of(self, state: Mapping[str, Any]) -> bool:
        """Return whether a state is of the same clients."""
        return bytes.fromhex(state["peers"]) == self._peers

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, see ``state``."""
        for client, parts in state["prepared"].items():
            sent = PrepareReply(**{part: bytes.fromhex(text) for part, text in parts.items()})
            self.prepared[int(client)] = self._checked(int(client), sent)
        self.survivors = state["survivors"]

    @property
    def _max_weight(self) -> float:
        return max(self._weight(node) for node in self.members.values())

    def _weight(self, node: Node) -> float:
        examples = self.run.experiment.federation.weighting == "examples"
        return float(node.examples) if examples else 1.0

    @property
    def _label(self) -> bytes:
        return label(self.run.runtime.digest, self.run.name)

    @cached_property
    def _peers(self) -> bytes:
        return b"".join(node.peer for node in self.nodes.values())

    @cached_property
    def _round_context(self) -> str:
        run = run_context(self.run.runtime.digest, self.run.name)
        return round_context(run, self.number, self._peers)
