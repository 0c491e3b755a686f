"""A round whose updates are summed under masks: prepare, train, unmask.

The server passes keys and sealed shares between clients, adds up masked updates, and asks for the
shares that remove the masks from the sum. What clients refuse, and why a server that lies learns no
single update: ``clients/secure/masking.py`` and ``docs/explanation/secure-aggregation.md``.

The state of a round is in the run's folder before each request, so a run that continues asks again
for the same: clients would refuse to mask an update twice for different members.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message

from fedpeft.errors import RunFailed
from fedpeft.experiment.robust import needed_by_rule
from fedpeft.files import write_json
from fedpeft.profiling import phase
from fedpeft.randomness import generator
from fedpeft.runs.records import Kind
from fedpeft.secure.masks import unpacked
from fedpeft.updates.sums import Mean, width
from fedpeft.wire.failures import Failure, FailureKind
from fedpeft.wire.messages import TrainReply
from server.exchange.byte_ledger import ByteLedger
from server.exchange.sending import Patience, check_replies, exchange
from server.members.nodes import Node
from server.run import Run
from server.secure.bucket import Bucket
from server.secure.unmasking import Masked

log = logging.getLogger(__name__)
_FILE = "secure.json"  # in the run's folder: the round that is being played


@dataclass(frozen=True)
class Sum:
    """What the server learns of the updates of ``clients``: their mean."""

    clients: list[int]
    mean: Mean


@dataclass
class SecureRound:
    """A round of sums under masks, one for each bucket of clients.

    Attributes:
        run: the run.
        number: of the round, from 1.
        ledger: counts the bytes of the round.
        nodes: of the clients asked.
        clip_norm: at which clients clip their updates.
        failed: failures by client.
    """

    run: Run
    number: int
    ledger: ByteLedger
    nodes: dict[int, Node]
    clip_norm: float
    failed: dict[int, Failure] = field(default_factory=dict)
    _buckets: list[Bucket] = field(default_factory=list)
    _begun: bool = False

    def __post_init__(self) -> None:
        """Divide the clients at random, into sums of equal size if all are there."""
        experiment, clients = self.run.experiment, np.array([*self.nodes])
        generator(experiment.seed, "secure-buckets", self.number).shuffle(clients)
        for part in np.array_split(clients, experiment.secure.buckets):
            nodes = {client: self.nodes[client] for client in sorted(part.tolist())}
            self._buckets.append(Bucket(self.run, self.number, nodes, self.clip_norm))

    def prepare(self) -> dict[int, Node]:
        """Let clients make their keys and shares; return the members, those of all sums.

        None if a process before began the round with other clients: those that prepared it do not
        prepare it again, and the next round trains again.

        Raises:
            RunFailed: no sum has enough. Nothing was trained.
        """
        self._restore()
        if not any(bucket.prepared for bucket in self._buckets):
            self._save()
            replies, failed = self._exchange(
                "prepare", lambda client: self._of(client).preparation(), self._enough()
            )
            self.failed |= failed
            made = check_replies(
                replies,
                self.failed,
                lambda client, reply: self._of(client).read_prepared(client, reply),
            )
            if not self._begun:
                self.failed = {c: failure.uncharged() for c, failure in self.failed.items()}
            for bucket in self._buckets:
                bucket.prepared = {c: each for c, each in made.items() if c in bucket.nodes}
            self._save()
        if not self.members and not self._begun:
            most = max(self._buckets, key=lambda bucket: len(bucket.prepared))
            raise RunFailed(
                f"round {self.number}: {len(most.prepared)} of {len(most.nodes)} clients prepared "
                f"a sum under masks, the threshold is {most.threshold} (secure.threshold) "
                f"({'; '.join(f'client {c}: {r}' for c, r in [*self.failed.items()][:3])})"
            )
        for bucket in self._buckets:
            if not bucket.members:
                self._too_few(bucket, len(bucket.prepared), "prepared the round")
        return self.members

    def _enough(self) -> dict[int, Node]:
        """Return the clients of sums that have as many as the threshold."""
        enough = [bucket for bucket in self._buckets if len(bucket.nodes) >= bucket.threshold]
        return {client: node for bucket in enough for client, node in bucket.nodes.items()}

    @property
    def members(self) -> dict[int, Node]:
        """The clients that prepared the round, in sums that have enough of them."""
        prepared = {client for bucket in self._buckets for client in bucket.members}
        return {client: node for client, node in self.nodes.items() if client in prepared}

    def train(
        self, vectors: Mapping[int, bytes], reference: bytes
    ) -> tuple[dict[int, Message], dict[int, Failure]]:
        """Send the task vector to the members; return replies and failures by client.

        All get the same bytes, or their masks would not cancel.
        """
        [vector] = {*vectors.values()}
        replies, failed = self._exchange(
            "train",
            lambda client: self._of(client).request(client, vector, reference),
            self.members,
        )
        self.failed |= failed
        return replies, failed

    def read_masked(self, client: int, sent: TrainReply) -> Masked:
        """Return the masked levels and facts of a reply; ValueError for a wrong length."""
        size = self.run.runtime.parameters.shared.size
        bits = width(self.run.experiment, len(self._of(client).nodes), size)
        return unpacked(sent.vector, size, bits)

    def unmask(self, masked: Mapping[int, Masked]) -> list[Sum]:
        """Return the sums that could be unmasked; none if the strategy needs more of them."""
        for bucket in self._buckets:
            # After a restart, of those that the process before told clients.
            arrived = [c for c in bucket.survivors or bucket.members if c in masked]
            bucket.survivors = arrived if len(arrived) >= bucket.threshold else None
            if bucket.members and not bucket.survivors:
                self._too_few(bucket, len(arrived), "masked an update")
        self._save()
        revealed = self._reveal()
        tried = [self._sum(bucket, masked, revealed) for bucket in self._buckets]
        summed = [one for one in tried if one is not None]
        strategy = self.run.experiment.federation.strategy
        if summed and len(summed) < (least := needed_by_rule(self.run.experiment.federation)):
            why = f"lost: {len(summed)} sums, strategy '{strategy}' needs {least}"
            log.warning("round %d leaves the vector as it is: %s", self.number, why)
            lost = Failure(FailureKind.LOST, why)
            self.failed |= {c: lost for one in summed for c in one.clients}
            return []
        return summed

    def _reveal(self) -> dict[int, dict[int, bytes]]:
        """Ask the survivors for their shares; return them by holder and owner."""
        survivors = {c: self.nodes[c] for bucket in self._buckets for c in bucket.survivors or ()}
        if not survivors:
            return {}
        replies, refused = self._exchange(
            "unmask", lambda client: self._of(client).question(), survivors
        )
        revealed = check_replies(
            replies, refused, lambda client, reply: self._of(client).read_shares(client, reply)
        )
        for client, reason in refused.items():
            log.warning("round %d: client %d revealed nothing: %s", self.number, client, reason)
        return revealed

    def _sum(
        self,
        bucket: Bucket,
        masked: Mapping[int, Masked],
        revealed: Mapping[int, Mapping[int, bytes]],
    ) -> Sum | None:
        """Return the sum of a bucket, or None if too few clients are left."""
        if not bucket.survivors:
            return None
        shares = {client: revealed[client] for client in bucket.survivors if client in revealed}
        try:
            with phase("unmasking"):
                mean = bucket.mean({client: masked[client] for client in bucket.survivors}, shares)
        except ValueError as error:  # too few shares, or of garbage; no other sum is possible
            self._without(bucket, str(error))
            return None
        return Sum(bucket.survivors, mean)

    def _too_few(self, bucket: Bucket, left: int, did: str) -> None:
        size = len(bucket.nodes)
        self._without(
            bucket, f"{left} of {size} clients {did}, the threshold is {bucket.threshold}"
        )

    def _without(self, bucket: Bucket, why: str) -> None:
        lost = Failure(FailureKind.LOST, f"lost: {why}")
        log.warning("round %d is without a sum: %s", self.number, lost)
        self.failed |= {c: lost for c in bucket.nodes if c not in self.failed}

    def _of(self, client: int) -> Bucket:
        return next(bucket for bucket in self._buckets if client in bucket.nodes)

    def _exchange(
        self, kind: Kind, content: Callable[[int], object], nodes: Mapping[int, Node]
    ) -> tuple[dict[int, Message], dict[int, Failure]]:
        federation = self.run.experiment.federation
        # Keys and shares take no time: a node that hangs must not delay the round for long.
        # Simulated clients do not hang, but answer one after the other.
        wait = federation.node_wait if self.run.name else federation.timeout
        quick = Patience(min(federation.timeout, wait))
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
        state = {"round": self.number, "buckets": [bucket.state() for bucket in self._buckets]}
        write_json(self.run.folder.path / _FILE, state)

    def _restore(self) -> None:
        """Take the state of this round from the run's folder, if a process before began it."""
        path = self.run.folder.path / _FILE
        if not path.exists():
            return
        state = json.loads(path.read_text(encoding="utf-8"))
        self._begun = state["round"] == self.number
        pairs = [*zip(self._buckets, state["buckets"], strict=True)]
        if self._begun and all(bucket.is_of(kept) for bucket, kept in pairs):
            for bucket, kept in pairs:
                bucket.restore(kept)
