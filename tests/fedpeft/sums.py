"""A round of a sum under masks, played by the clients' own functions; tests are the server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict

from clients.data.client_data import KEPT_FOLDER, LEDGER_FOLDER, LocalData, local_data
from clients.secure import masking, preparation, secrets
from clients.secure.masking import Masking, Work
from fedpeft.experiment.config import Experiment
from fedpeft.secure import keys
from fedpeft.secure.keys import Peer
from fedpeft.secure.masks import request_context, round_context, unpacked
from fedpeft.secure.parts import to_numbers
from fedpeft.secure.thresholds import Sharing
from fedpeft.updates.sums import sharing_for
from fedpeft.wire.messages import PrepareReply
from server.secure.unmasking import (
    Masked,
    Prepared,
    checked_shares,
    enough,
    read_prepared,
    unmasked,
)

BITS = 12
SIZE = 40  # levels in an update
WORK: Work = (b"vector", 1.0, 1.0)


class Federation:
    """The clients of a simulation, and what a server does with them."""

    def __init__(self, experiment: Experiment, folder: Path):
        self.clients = [*range(experiment.federation.clients)]
        self.experiment = experiment
        self.folder, toml = folder, experiment.to_toml()
        self.data = {client: self._data(toml, client) for client in self.clients}
        self.peers = {c: preparation.introduce(data) for c, data in self.data.items()}

    def _data(self, toml: str, client: int) -> LocalData:
        config = {
            "partition-id": client,
            "num-partitions": len(self.clients),
            LEDGER_FOLDER: str(self.folder / "privacy"),
            KEPT_FOLDER: str(self.folder / "kept"),
        }
        return local_data(toml, Context(1, client, config, RecordDict(), {}), client)

    def listed(self, clients: Iterable[int] | None = None) -> bytes:
        return b"".join(self.peers[c] for c in (self.clients if clients is None else clients))

    def prepare(self, number: int = 1, clients: Iterable[int] | None = None) -> dict[int, Prepared]:
        chosen = self.clients if clients is None else [*clients]
        made = {}
        for client in chosen:
            reply = preparation.prepare(self.data[client], number, self.listed(chosen))
            made[client] = self.read(client, reply, number, chosen)
        return made

    def read(self, client: int, reply: PrepareReply, number: int, clients: list[int]) -> Prepared:
        peer, context = Peer.from_bytes(self.peers[client]), self.context(number, clients)
        return read_prepared(reply, peer, clients, context, self.rules(len(clients)))

    def context(self, number: int = 1, clients: Iterable[int] | None = None) -> str:
        return round_context(self.data[self.clients[0]].context, number, self.listed(clients))

    def rules(self, clients: int = 0) -> Sharing:
        return sharing_for(self.experiment, clients)

    def members(self, prepared: dict[int, Prepared]) -> bytes:
        return b"".join(made.member.to_bytes() for made in prepared.values())

    def sealed(self, prepared: dict[int, Prepared], receiver: int) -> bytes:
        return b"".join(
            made.sealed[receiver] for made in prepared.values() if receiver in made.sealed
        )

    def masking(
        self, prepared: dict[int, Prepared], client: int, number: int = 1, work: Work = WORK
    ) -> Masking:
        listed, sealed = self.members(prepared), self.sealed(prepared, client)
        return Masking(self.data[client], number, listed, sealed, work)

    def mask(
        self,
        prepared: dict[int, Prepared],
        client: int,
        levels: np.ndarray,
        number: int = 1,
        work: Work = WORK,
    ) -> Masked:
        facts = np.array([1, 2], np.uint64)
        data = self.masking(prepared, client, number, work).mask(levels, facts, BITS)
        return unpacked(data, len(levels), BITS)

    def reveal(self, client: int, survivors: Iterable[int], number: int = 1) -> bytes:
        return masking.reveal(self.data[client], number, to_numbers(survivors))

    def total(
        self,
        prepared: dict[int, Prepared],
        masked: dict[int, Masked],
        shares: dict[int, bytes],
        number: int = 1,
        clients: list[int] | None = None,
    ) -> Masked:
        chosen = self.clients if clients is None else clients
        revealed = {
            holder: checked_shares(data, holder, prepared, masked)
            for holder, data in shares.items()
        }
        bound = request_context(self.context(number, chosen), *WORK)
        ready = enough(prepared, revealed, self.rules(len(chosen)).needed)
        return unmasked(masked, prepared, ready, bound, BITS)

    def stranger(self, client: int, seed: int) -> bytes:
        """The introduction of a client whose registered key is in nobody's roster."""
        private = secrets.read(self.data[client]).private
        made = keys.simulated(seed, client)
        return keys.introduced(made, self.data[client].context, client, private).to_bytes()


def updates(clients: list[int], number: int = 1) -> dict[int, np.ndarray]:
    """Return an update of each client, levels from 0 to 15 [SIZE]."""
    draw = np.random.default_rng(number)
    return {client: draw.integers(0, 16, SIZE).astype(np.uint64) for client in clients}


def play(
    federation: Federation, lost_before: list[int], lost_after: list[int], number: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of a round in which some clients are lost, and what it should be."""
    prepared = federation.prepare(number)
    plain = updates(federation.clients, number)
    masked = {
        client: federation.mask(prepared, client, plain[client], number)
        for client in federation.clients
        if client not in lost_before
    }
    holders = [client for client in masked if client not in lost_after]
    shares = {client: federation.reveal(client, masked, number) for client in holders}
    levels, facts = federation.total(prepared, masked, shares, number)
    assert facts.tolist() == [len(masked), 2 * len(masked)]
    return levels, sum(plain[client] for client in masked)


def mask_all(federation: Federation) -> None:
    """Prepare round 1, and mask an update of every client."""
    prepared, plain = federation.prepare(), updates(federation.clients)
    for client in federation.clients:
        federation.mask(prepared, client, plain[client])
