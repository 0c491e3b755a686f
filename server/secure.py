"""A round whose updates are summed under masks: prepare, train, unmask.

The server passes keys and sealed shares between clients, adds up masked updates, and asks for the
shares that remove the masks from the sum. What clients refuse, and why a server that lies learns no
single update: ``clients/masking.py`` and ``docs/explanation/secure-aggregation.md``.

The state of a round is in the run's folder before each request, so a run that continues asks again
for the same: clients would refuse to mask an update twice for different members.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from flwr.app import Message

from fedpeft import sums
from fedpeft.errors import RunFailed
from fedpeft.files import write_json
from fedpeft.profiling import phase
from fedpeft.secure.masks import request_context, round_context, run_context, unpacked
from fedpeft.secure.parts import Member, to_numbers
from fedpeft.secure.thresholds import threshold
from fedpeft.sums import Mean
from fedpeft.wire.messages import (
    RECORD,
    PrepareReply,
    PrepareRequest,
    Request,
    TrainReply,
    UnmaskReply,
    UnmaskRequest,
    from_fields,
    label,
)
from server.byte_ledger import ByteLedger
from server.exchange import Patience, check_replies, exchange
from server.nodes import Node
from server.records import Kind
from server.run import Run
from server.unmasking import Masked, Prepared, checked_shares, read_prepared, unmasked

log = logging.getLogger(__name__)
LOST = "lost"  # begins the reason of a client whose update is lost because others failed
_FILE = "secure.json"  # in the run's folder: the round that is being played


@dataclass
class SecureRound:
    """A round of sums under masks.

    Attributes:
        run: the run.
        number: of the round, from 1.
        ledger: counts the bytes of the round.
        nodes: of the clients asked.
        clip_norm: at which clients clip their updates.
        failed: reasons by client.
    """

    run: Run
    number: int
    ledger: ByteLedger
    nodes: dict[int, Node]
    clip_norm: float
    failed: dict[int, str] = field(default_factory=dict)
    _request_context: str = ""
    _prepared: dict[int, Prepared] = field(default_factory=dict)
    _survivors: list[int] | None = None
    _begun: bool = False

    def prepare(self) -> dict[int, Node]:
        """Let clients make their keys and shares; return those that did, the members.

        None if a process before began the round with other clients: those that have masked an
        update do not prepare it again, and the next round trains anew.

        Raises:
            RunFailed: fewer than the threshold. Nothing was trained.
        """
        if not self._restored():
            replies, failed = self._exchange("prepare", self._preparation, self.nodes)
            self.failed |= failed
            self._prepared = check_replies(replies, self.failed, self._read_prepared)
            self._save()
        if len(self._prepared) < self.threshold and self._begun:
            self._too_few(len(self._prepared), "prepared the round again")
            return {}
        if len(self._prepared) < self.threshold:
            raise RunFailed(
                f"round {self.number}: {len(self._prepared)} of {len(self.nodes)} clients prepared "
                f"a sum under masks, the threshold is {self.threshold} (secure.threshold) "
                f"({'; '.join(f'client {c}: {r}' for c, r in [*self.failed.items()][:3])})"
            )
        return self.members

    @property
    def members(self) -> dict[int, Node]:
        """The clients that prepared the round."""
        return {client: self.nodes[client] for client in self._prepared}

    @property
    def threshold(self) -> int:
        """How many members must stay to the end."""
        experiment = self.run.experiment
        secure = experiment.secure
        return threshold(experiment.clients_asked, secure.colluders, secure.threshold)

    @property
    def max_weight(self) -> float:
        """The largest weight among the members."""
        return max(self._weight(node) for node in self.members.values())

    def train(
        self, vectors: Mapping[int, bytes], reference: bytes
    ) -> tuple[dict[int, Message], dict[int, str]]:
        """Send the task vector to the members; return replies and failures by client.

        All get the same bytes, or their masks would not cancel.
        """
        [vector] = {*vectors.values()}
        self._request_context = request_context(
            self._round_context, vector, self.clip_norm, self.max_weight
        )

        def content(client: int) -> Request:
            return Request(
                vector=vectors[client],
                round=self.number,
                label=self._label,
                reference=reference,
                members=self._members_for(client),
                clip_norm=self.clip_norm,
                max_weight=self.max_weight,
            )

        replies, failed = self._exchange("train", content, self.members)
        self.failed |= failed
        return replies, failed

    def read_masked(self, sent: TrainReply) -> Masked:
        """Return the masked levels and facts of a reply; ValueError for a wrong length."""
        return unpacked(sent.vector, self.run.runtime.parameters.shared.size, self._bits)

    def unmask(self, masked: dict[int, Masked]) -> Mean | None:
        """Return the means of the updates that arrived, or None if too few clients are left."""
        if self._survivors is not None:  # of the process before
            masked = {client: masked[client] for client in self._survivors if client in masked}
        if len(masked) < self.threshold:
            self._too_few(len(masked), "masked an update")
            return None
        self._survivors = [*masked]
        self._save()
        replies, failed = self._exchange(
            "unmask", lambda client: self._question, {c: self.nodes[c] for c in masked}
        )
        refused = dict(failed)
        check = partial(self._read_shares, masked)
        revealed = check_replies(replies, refused, check)
        for client, reason in refused.items():
            log.warning("round %d: client %d revealed nothing: %s", self.number, client, reason)
        if len(revealed) < self.threshold:
            self._too_few(len(revealed), "revealed their shares")
            return None
        enough = dict([*revealed.items()][: self.threshold])
        try:
            with phase("unmasking"):
                levels, facts = unmasked(
                    masked, self._prepared, enough, [*self.nodes], self._request_context, self._bits
                )
        except ValueError as error:  # a client that prepared garbage; no other sum is possible
            log.warning("round %d is without a sum: %s", self.number, error)
            self.failed |= {c: f"{LOST}: {error}" for c in self._prepared if c not in self.failed}
            return None
        weights = [self._weight(self.nodes[client]) for client in masked]
        shares = sum(weights) / self.max_weight
        experiment = self.run.experiment
        return sums.decoded(
            experiment, self.number, levels, facts, len(masked), self.clip_norm, shares
        )

    def _too_few(self, left: int, did: str) -> None:
        reason = (
            f"{LOST}: {left} of {len(self.nodes)} clients {did}, the threshold is {self.threshold}"
        )
        log.warning("round %d is without a sum: %s", self.number, reason)
        self.failed |= {c: reason for c in self.nodes if c not in self.failed}

    def _weight(self, node: Node) -> float:
        examples = self.run.experiment.federation.weighting == "examples"
        return float(node.examples) if examples else 1.0

    @property
    def _bits(self) -> int:
        size = self.run.runtime.parameters.shared.size
        return sums.width(self.run.experiment, len(self.nodes), size)

    @property
    def _label(self) -> bytes:
        return label(self.run.runtime.digest, self.run.name)

    @property
    def _peers(self) -> bytes:
        return b"".join(node.peer for node in self.nodes.values())

    @property
    def _round_context(self) -> str:
        return round_context(
            run_context(self.run.runtime.digest, self.run.name), self.number, self._peers
        )

    def _preparation(self, client: int) -> PrepareRequest:
        return PrepareRequest(round=self.number, label=self._label, peers=self._peers)

    @property
    def _question(self) -> UnmaskRequest:
        listed = to_numbers(self._survivors or [])
        return UnmaskRequest(round=self.number, label=self._label, survivors=listed)

    def _members_for(self, client: int) -> bytes:
        entries = (
            Member(owner, made.key, made.sealed[client])
            if owner != client
            else Member(owner, made.key)
            for owner, made in self._prepared.items()
        )
        return b"".join(entry.to_bytes() for entry in entries)

    def _read_prepared(self, client: int, reply: Message) -> Prepared:
        sent = from_fields(PrepareReply, reply.content.get(RECORD))
        return read_prepared(sent.key, sent.sealed, sent.digests, client, [*self.nodes])

    def _read_shares(
        self, masked: Mapping[int, Masked], client: int, reply: Message
    ) -> dict[int, bytes]:
        sent = from_fields(UnmaskReply, reply.content.get(RECORD))
        return checked_shares(sent.shares, client, [*self.nodes], self._prepared, masked)

    def _exchange(
        self, kind: Kind, content: Callable[[int], object], nodes: Mapping[int, Node]
    ) -> tuple[dict[int, Message], dict[int, str]]:
        federation = self.run.experiment.federation
        # Keys and shares take no time: a node that hangs must not delay the round for long.
        quick = Patience(min(federation.timeout, federation.node_wait))
        patience = self.run.patience("train") if kind == "train" else quick
        return exchange(
            self.run.grid,
            kind,
            content,
            {client: node.node_id for client, node in nodes.items()},
            self.ledger,
            patience,
            lambda done, total: self.run.folder.report("train", self.number, done, total),
            self.run.clock,
        )

    def _save(self) -> None:
        prepared = {
            client: {
                "key": made.key.hex(),
                "sealed": b"".join(made.sealed.values()).hex(),
                "digests": b"".join(b"".join(each) for each in made.digests.values()).hex(),
            }
            for client, made in self._prepared.items()
        }
        state = {
            "round": self.number,
            "peers": self._peers.hex(),
            "prepared": prepared,
            "survivors": self._survivors,
        }
        write_json(self.run.folder.path / _FILE, state)

    def _restored(self) -> bool:
        """Take the state of this round from the run's folder, if a process before began it."""
        path = self.run.folder.path / _FILE
        if not path.exists():
            return False
        state = json.loads(path.read_text(encoding="utf-8"))
        self._begun = state["round"] == self.number
        if not self._begun or bytes.fromhex(state["peers"]) != self._peers:
            return False
        clients = [*self.nodes]
        for client, made in state["prepared"].items():
            key, sealed, digests = (
                bytes.fromhex(made[part]) for part in ("key", "sealed", "digests")
            )
            self._prepared[int(client)] = read_prepared(key, sealed, digests, int(client), clients)
        self._survivors = state["survivors"]
        return True
