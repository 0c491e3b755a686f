"""What a client keeps for sums under masks: its keys, and what it has revealed.

One private file for each run, written before anything of it leaves the client: a node that is
killed answers a repeated request as before, and never contradicts what it has said.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients.data import LocalData
from clients.errors import Refusal
from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, keep_newest, write_together
from fedpeft.hosting.locks import locked
from fedpeft.secure import keys
from fedpeft.secure.keys import Peer, Roster

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_RUNS = 100  # files of one folder: a server could otherwise fill a node's disk with runs
_PATIENCE = 60.0  # seconds that a process waits for another one of the node
_UPDATES = 1000  # digests of updates kept of a run


@dataclass(frozen=True)
class RoundSecrets:
    """The secrets of one round.

    Attributes:
        number: of the round.
        threshold: shares that reveal a secret.
        peers: the clients of the round, this one included, by number.
        key_seed: its private X25519 key of the round follows from it.
        mask_seed: of its self-mask.
        coefficients: seed of the polynomials that share both.
        own_share: its own share of ``mask_seed``.
        asked: SHA-256 of the members and of what they were asked to do; empty before masking.
        masked: SHA-256 of the update that was masked; empty before.
        held: for each other member, shares of its key seed and of its mask seed.
        survivors: those for whom shares were revealed; None before.
    """

    number: int
    threshold: int
    peers: dict[int, Peer]
    key_seed: bytes
    mask_seed: bytes
    coefficients: bytes
    own_share: bytes
    asked: bytes = b""
    masked: bytes = b""
    held: dict[int, bytes] = field(default_factory=dict)
    survivors: list[int] | None = None

    @property
    def private(self) -> bytes:
        """The private X25519 key of the round."""
        return keys.derived(self.key_seed, "round key")

    @property
    def noise_seed(self) -> bytes:
        """The seed of this client's noise for the sum.

        From the seed of the polynomials, which nobody else ever learns: peers hold shares of the
        two other seeds, and the server combines them.
        """
        return keys.derived(self.coefficients, "noise")


@dataclass(frozen=True)
class RunSecrets:
    """The secrets of a run.

    Attributes:
        private: X25519 key of the run.
        masked_round: the last round in which an update was masked.
        updates: SHA-256 of each update that was masked.
        latest: of the last round that was prepared.
    """

    private: bytes
    masked_round: int = 0
    updates: tuple[bytes, ...] = ()
    latest: RoundSecrets | None = None

    def with_masked(self, update: bytes, latest: RoundSecrets) -> RunSecrets:
        """Return the secrets after the masking of an update with this digest."""
        updates = (*self.updates, update)[-_UPDATES:]
        return replace(self, masked_round=latest.number, updates=updates, latest=latest)


@contextmanager
def exclusive(data: LocalData) -> Iterator[None]:
    """Let one process of a node at a time read, check and write its secrets."""
    if data.settings is None:  # a simulated client has one process
        yield
        return
    data.keeps.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = "another process of this node uses its secrets; try again later"
    with locked(data.keeps / "secure.lock", taken, _PATIENCE):
        yield


def read(data: LocalData) -> RunSecrets:
    """Return the client's secrets of a run; new ones at its first use.

    Raises:
        UserError: the file is damaged.
    """
    path = _path(data)
    if not path.exists():
        made = RunSecrets(secrets.token_bytes(keys.KEY_BYTES))
        write(data, made)
        return made
    try:
        return _run(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        raise UserError("the file of this client's secrets is damaged; start a new run") from None


def write(data: LocalData, run: RunSecrets) -> None:
    """Keep the secrets of a run."""
    path = _path(data)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(vars(run), default=_plain).encode()
    write_together({path: (text, PRIVATE)}, replace=True)
    if data.settings:  # a deployed node, whose folder has one file for each run
        keep_newest(path.parent, _RUNS)


def registered_key(data: LocalData) -> EllipticCurvePrivateKey:
    """Return the key by which the peers know this client.

    Raises:
        UserError: the node's file cannot be read.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    experiment = data.runtime.experiment
    if data.settings is None:
        return keys.simulated(experiment.seed, data.client)
    try:
        key = load_ssh_private_key(Path(data.settings.key).read_bytes(), None)
    except OSError as error:
        path = data.settings.key
        raise UserError(f"--key {path}: cannot be read ({error.strerror})") from None
    assert isinstance(key, EllipticCurvePrivateKey)  # checked at `fedpeft node up`
    return key


def roster(data: LocalData) -> Roster:
    """Return the keys that this client trusts.

    Raises:
        Refusal: the operator of this node has given none.
        UserError: the file cannot be read.
    """
    experiment = data.runtime.experiment
    if data.settings is None:
        return keys.simulated_roster(experiment.seed, experiment.federation.clients)
    if not data.settings.roster:
        raise Refusal(
            "federation.secure = true: this node knows no other nodes; `fedpeft node up --roster` "
            "names the file of their public keys"
        )
    return Roster.read(Path(data.settings.roster))


def _path(data: LocalData) -> Path:
    return data.keeps / "secure" / f"{data.name}.json"


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value.to_bytes().hex() if isinstance(value, Peer) else vars(value)


def _run(values: Mapping[str, Any]) -> RunSecrets:
    latest = values["latest"]
    updates = tuple(bytes.fromhex(each) for each in values["updates"])
    private, masked_round = bytes.fromhex(values["private"]), int(values["masked_round"])
    return RunSecrets(private, masked_round, updates, latest and _round(latest))


def _round(values: Mapping[str, Any]) -> RoundSecrets:
    return RoundSecrets(
        values["number"],
        values["threshold"],
        {int(c): Peer.from_bytes(bytes.fromhex(p)) for c, p in values["peers"].items()},
        bytes.fromhex(values["key_seed"]),
        bytes.fromhex(values["mask_seed"]),
        bytes.fromhex(values["coefficients"]),
        bytes.fromhex(values["own_share"]),
        bytes.fromhex(values["asked"]),
        bytes.fromhex(values["masked"]),
        {int(client): bytes.fromhex(held) for client, held in values["held"].items()},
        values["survivors"],
    )
