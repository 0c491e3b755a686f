"""Time of the parts of secure aggregation at one client, and of unmasking at the server.

The functions that clients and servers call, with keys of that many clients and without a
federation, files and messages. Nothing is cached, as for a client that is alone in its process.

Example:
    python -m simulations.benchmarks.unmasking
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from secrets import token_bytes

import numpy as np

from fedpeft.secure import holders, keys, ring, sharing
from fedpeft.secure.keys import KEY_BYTES, SEED_BYTES, Peer
from fedpeft.secure.masks import FACTS, masked, pair_seed, self_seed, shares_key, unpacked
from fedpeft.secure.parts import DIGEST_BYTES, Member
from fedpeft.secure.thresholds import sharing_of, threshold
from server.secure.unmasking import Masked, Prepared, enough, unmasked
from simulations.benchmarks.common import Report, Row, arguments_of, record, script, timed

CONTEXT = "benchmark"


class Crowd:
    """The keys of a round's clients, with shares of which all digests are zeros."""

    def __init__(self, clients: int, size: int):
        self.clients, self.size = [*range(clients)], size
        self.bits = ring.width(clients, 16)
        colluders = clients // 20
        self.rules = sharing_of(clients, colluders, threshold(clients, colluders))
        self.run = {client: token_bytes(KEY_BYTES) for client in self.clients}
        self.peers = {client: self._peer(client) for client in self.clients}
        self.seeds = {client: token_bytes(SEED_BYTES) for client in self.clients}
        self.private = {c: keys.derived(seed, "round key") for c, seed in self.seeds.items()}
        self.members = {client: self._member(client) for client in self.clients}

    def _peer(self, client: int) -> Peer:
        return keys.introduced(keys.simulated(0, client), CONTEXT, client, self.run[client])

    def _member(self, client: int) -> Member:
        key, seed = keys.public_key(self.private[client]), token_bytes(SEED_BYTES)
        return Member.signed(self.run[client], CONTEXT, client, key, seed)

    def client_parts(self) -> dict[str, Callable[[], object]]:
        """Return what client 0 does in a round; the roster only in the first round of a run."""
        return {
            "check the peers against the roster (once a run)": self._roster,
            "share its secrets": self._share,
            "check the members' keys": self._signatures,
            "find and derive its shares": self._hold,
            "agree with the others on masks": self._agree,
            "mask the update": self._mask,
        }

    def _roster(self) -> None:
        roster = keys.Roster.of(keys.public_line(keys.simulated(0, c)) for c in self.clients)
        assert all(roster.trusts(peer, CONTEXT) for peer in self.peers.values())

    def _share(self) -> None:
        own = keys.private_key(self.run[0])
        chosen = holders.holders(token_bytes(SEED_BYTES), self.clients, 0, self.rules.holders)
        pads = [
            shares_key(own, self.peers[h].key, CONTEXT, 0, h, self.members[0].key) for h in chosen
        ]
        secret = self.seeds[0] + token_bytes(SEED_BYTES)
        sharing.split(secret, pads[: self.rules.needed - 1], self.rules.holders)

    def _signatures(self) -> None:
        members = self.members.values()
        assert all(each.is_signed(self.peers[each.client].verifier, CONTEXT) for each in members)

    def _hold(self) -> None:
        own = keys.private_key(self.run[0])
        seeds = {client: member.holder_seed for client, member in self.members.items()}
        for owner in holders.points(seeds, self.clients, 0, self.rules.holders):
            key = self.members[owner].key
            shares_key(own, self.peers[owner].key, CONTEXT, owner, 0, key)

    def _agree(self) -> None:
        own = keys.private_key(self.private[0])
        self.pairs = [
            pair_seed(own, member.key, CONTEXT, 0, client)
            for client, member in self.members.items()
            if client
        ]

    def _mask(self) -> None:
        levels, facts = np.zeros(self.size, np.uint64), np.zeros(FACTS, np.uint64)
        masked(levels, facts, self.bits, [self_seed(self.seeds[0]), *self.pairs], [])

    def unmask(self, lost: int) -> Callable[[], Masked]:
        """Return the server's work if the last ``lost`` clients are lost after they prepared."""
        nothing = 2 * DIGEST_BYTES * b"0"
        prepared = {}
        revealed: dict[int, dict[int, bytes]] = {client: {} for client in self.clients[:-lost]}
        for client, member in self.members.items():
            rules = self.rules
            chosen = holders.holders(member.holder_seed, self.clients, client, rules.holders)
            digests = dict.fromkeys(chosen, (nothing, nothing))
            prepared[client] = Prepared(member, {}, digests)
            derived = [token_bytes(SEED_BYTES) for _ in range(rules.needed - 1)]
            rest = sharing.split(self.seeds[client], derived, rules.holders)
            for holder, share in zip(chosen, derived + rest, strict=True):
                if holder in revealed:
                    revealed[holder][client] = share
        levels, facts = np.zeros(self.size, np.uint64), np.zeros(FACTS, np.uint64)
        empty = unpacked(masked(levels, facts, self.bits, [], []), self.size, self.bits)
        updates = dict.fromkeys(revealed, empty)

        def work() -> Masked:
            shares = enough(prepared, revealed, self.rules.needed)
            return unmasked(updates, prepared, shares, CONTEXT, self.bits)

        return work


def rows_of(clients: int, size: int) -> list[Row]:
    """Return the rows of one number of clients."""
    crowd = Crowd(clients, size)
    parts = {f"client: {name}": work for name, work in crowd.client_parts().items()}
    for percent in (10, 20):
        parts[f"server: unmask, {percent} % lost"] = crowd.unmask(clients * percent // 100)
    rows = []
    for name, work in parts.items():
        timing, _ = timed(work)
        wall, cpu = round(1000 * timing.wall, 1), round(1000 * timing.cpu, 1)
        rows.append({"clients": clients, "part": name, "wall, ms": wall, "CPU, ms": cpu})
    return rows


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark from its command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = arguments_of(__doc__, None)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--size", type=int, default=4099, help="numbers of a vector (4099)")
    options = parser.parse_args(arguments)
    rows = [row for clients in options.clients for row in rows_of(clients, options.size)]
    settings = {"numbers": options.size, "bits of a level": 4, "colluders": "1 in 20"}
    report = Report(settings, rows, {}, {"rows": rows})
    record("unmasking", "parts of sums under masks", report, arguments, options.results)
    return report


if __name__ == "__main__":
    script(main)
