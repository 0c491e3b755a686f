"""A round of a sum under masks, played by the clients' own functions; tests are the server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict

from clients import masking, secrets
from clients.data import KEPT_FOLDER, LEDGER_FOLDER, LocalData, local_data
from clients.masking import Masking, Work
from fedpeft.experiment.config import Experiment
from fedpeft.secure.keys import Peer
from fedpeft.secure.masks import request_context, round_context, unpacked
from fedpeft.secure.parts import Member, to_numbers
from server.unmasking import Masked, Prepared, checked_shares, read_prepared, unmasked

BITS = 12
WORK: Work = (b"vector", 1.0, 1.0)


class Federation:
    """The clients of a simulation, and what a server does with them."""

    def __init__(self, experiment: Experiment, folder: Path):
        self.clients = [*range(experiment.federation.clients)]
        self.folder, toml = folder, experiment.to_toml()
        self.data = {client: self._data(toml, client) for client in self.clients}
        self.peers = {c: masking.introduce(data) for c, data in self.data.items()}

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
            reply = masking.prepare(self.data[client], number, self.listed(chosen))
            parts = reply.key, reply.sealed, reply.digests
            made[client] = read_prepared(*parts, client, chosen)
        return made

    def members(self, prepared: dict[int, Prepared], receiver: int) -> bytes:
        return b"".join(
            Member(c, made.key, *([made.sealed[receiver]] if c != receiver else [])).to_bytes()
            for c, made in prepared.items()
        )

    def mask(
        self,
        prepared: dict[int, Prepared],
        client: int,
        levels: np.ndarray,
        number: int = 1,
        work: Work = WORK,
    ) -> Masked:
        facts = np.array([1, 2], np.uint64)
        listed = self.members(prepared, client)
        data = Masking(self.data[client], number, listed, work).mask(levels, facts, BITS)
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
            holder: checked_shares(data, holder, chosen, prepared, masked)
            for holder, data in shares.items()
        }
        context = self.data[chosen[0]].context
        bound = request_context(round_context(context, number, self.listed(chosen)), *WORK)
        return unmasked(masked, prepared, revealed, chosen, bound, BITS)

    def needed(self, client: int) -> int:
        latest = secrets.read(self.data[client]).latest
        assert latest
        return latest.threshold

    def stranger(self, client: int, seed: int) -> bytes:
        """The introduction of a client whose registered key is in nobody's roster."""
        from fedpeft.secure import keys

        own = Peer.from_bytes(self.peers[client])
        made = keys.simulated(seed, client)
        return keys.introduced(made, self.data[client].context, client, own.key).to_bytes()
