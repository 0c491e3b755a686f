"""What a client keeps for sums under masks: its keys, and what it has revealed.

One private file for each run, written before anything of it leaves the client: a node that is
killed answers a repeated request as before, and never contradicts what it has said.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clients.data.client_data import LocalData
from clients.errors import ClientError, Refusal
from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, keep_newest, write_together
from fedpeft.locks import locked
from fedpeft.secure import keys
from fedpeft.secure.keys import Roster

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

NOISE_BYTES = 32  # of a seed of noise
_RUNS = 100  # files of one folder: a server could otherwise fill a node's disk with runs
_PATIENCE = 60.0  # seconds that a process waits for another one of the node


@dataclass(frozen=True)
class RoundSecrets:
    """The secrets of one round.

    Attributes:
        number: of the round.
        peers: the clients of the round, this one included, as the server listed them.
        key_seed: its private X25519 key of the round follows from it.
        mask_seed: of its self-mask.
        holder_seed: of the choice of those that hold shares of both.
        noise_seed: of its noise for the sum. Nobody holds shares of it: the server combines those
            of the other two.
        own_share: its own share of ``mask_seed``; empty until both are shared.
        asked: SHA-256 of the members and of what they were asked to do; empty before masking.
        masked: SHA-256 of the update that was masked; empty before.
        held: shares of the key seed and of the mask seed of other members that chose this client.
        members: the members of the round; empty before masking.
        survivors: those for whom shares were revealed; None before.
    """

    number: int
    peers: bytes
    key_seed: bytes
    mask_seed: bytes
    holder_seed: bytes
    noise_seed: bytes
    own_share: bytes = b""
    asked: bytes = b""
    masked: bytes = b""
    held: dict[int, bytes] = field(default_factory=dict)
    members: list[int] = field(default_factory=list)
    survivors: list[int] | None = None

    @property
    def private(self) -> bytes:
        """The private X25519 key of the round."""
        return keys.derived(self.key_seed, "round key")


@dataclass(frozen=True)
class RunSecrets:
    """The secrets of a run.

    Attributes:
        client: number of the client, the same in the whole run: under two numbers it would share
            its secrets twice, and holders would reveal both of them.
        private: X25519 key of the run.
        latest: of the last round that was prepared.
    """

    client: int
    private: bytes
    latest: RoundSecrets | None = None


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
        ClientError: the client had another number in this run, or the file is damaged.
    """
    path = _path(data)
    if not path.exists():
        made = RunSecrets(data.client, secrets.token_bytes(keys.KEY_BYTES))
        write(data, made)
        return made
    try:
        run = _run(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        raise ClientError("the file of this client's secrets is damaged; start a new run") from None
    if run.client != data.client:
        raise ClientError(f"client {data.client}: this client is {run.client} in this run")
    return run


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
    return value.hex() if isinstance(value, bytes) else vars(value)


def _run(values: Mapping[str, Any]) -> RunSecrets:
    latest, private = values["latest"], bytes.fromhex(values["private"])
    return RunSecrets(int(values["client"]), private, latest and _round(latest))


def _round(values: Mapping[str, Any]) -> RoundSecrets:
    seeds = "key_seed", "mask_seed", "holder_seed", "noise_seed"
    parts = "peers", *seeds, "own_share", "asked", "masked"
    return RoundSecrets(
        number=values["number"],
        **{part: bytes.fromhex(values[part]) for part in parts},
        held={int(client): bytes.fromhex(held) for client, held in values["held"].items()},
        members=values["members"],
        survivors=values["survivors"],
    )
