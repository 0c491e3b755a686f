"""The state folder of a node: what ``fedpeft node up`` was told, and where everything lies."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedpeft import locks
from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, write_together

SETTINGS = "node.json"
OUR_OWN = ("minilm", "tiny")  # backbones that come with an installation
_FIELDS = {
    "data": (str,),
    "partition": (int, type(None)),
    "max_epsilon": (float, int, type(None)),
    "allow": (list,),
}


@dataclass(frozen=True)
class NodeSettings:
    """What a node brings into any run, and what it refuses."""

    #: Absolute path of a file or folder; empty: none (a trial with a task that makes its own data).
    data: str
    #: This client's part of the data, for trials; None: all of the data is this node's.
    partition: int | None = None
    #: Rounds that would spend more than this, and runs without privacy of examples, are refused.
    max_epsilon: float | None = None
    #: The backbones this node loads at its start, and no others; empty: none yet, and then
    #: those of OUR_OWN that are asked for. Any other would be a path or download the server chose.
    allow: tuple[str, ...] = ()

    @property
    def allowed(self) -> tuple[str, ...]:
        """The backbones that an experiment may name."""
        return self.allow or OUR_OWN

    @classmethod
    def read(cls, state: Path) -> NodeSettings:
        """Return the settings of a node.

        Raises:
            UserError: there are none, or they are damaged.
        """
        path = state / SETTINGS
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; 'fedpeft node up' makes it") from None
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or set(found) != set(_FIELDS):
            raise UserError(f"{path}: damaged; start 'fedpeft node up' again")
        for name, kinds in _FIELDS.items():
            if type(found[name]) not in kinds:
                raise UserError(f"{path}: damaged at '{name}'; start 'fedpeft node up' again")
        return cls(**{**found, "allow": tuple(str(name) for name in found["allow"])})

    def write(self, state: Path) -> None:
        """Keep the settings in a state folder."""
        content = json.dumps(asdict(self), indent=2) + "\n"
        write_together({state / SETTINGS: (content.encode(), PRIVATE)}, replace=True)


def socket_path(state: Path) -> Path:
    """Return where the resident worker listens."""
    return state / "worker.sock"


def ledger_path(state: Path) -> Path:
    """Return the node's privacy ledger."""
    return state / "privacy.sqlite"


def runtime_folder(state: Path) -> Path:
    """Return the folder of the key with which the node's own processes know each other."""
    return state / "runtime"


def log_path(state: Path) -> Path:
    """Return the log that all processes of the node append to."""
    return state / "node.log"


def experiments(state: Path) -> Path:
    """Return the folder of the experiments received at handshakes."""
    return state / "experiments"


def personal(state: Path) -> Path:
    """Return the folder of the parameters that stay here, a file for each experiment."""
    return state / "personal"


def prepare(state: Path) -> None:
    """Make the state folder, or take it over: it is for this user alone, mode 0700.

    Raises:
        UserError: it cannot be made or written, or belongs to another user.
    """
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        if state.stat().st_uid != os.geteuid():
            raise UserError(f"--state {state}: belongs to another user; use a folder of your own")
        state.chmod(0o700)
        for folder in (experiments(state), state / "flwr", state / "bin"):
            folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(log_path(state), os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        reason = error.strerror or "no folder"
        raise UserError(f"--state {state}: cannot be written ({reason})") from None


def secret_file(state: Path) -> Path:
    """Return the file with the secret that the node's own processes share, made at first use."""
    path = state / "secret"
    if not path.exists():
        write_together({path: (secrets.token_hex(32).encode(), PRIVATE)})
    return path


def locked(state: Path) -> AbstractContextManager[None]:
    """Keep a second node from using the state folder; a killed one lets go.

    Raises:
        UserError: another node runs in it.
    """
    return locks.locked(state / "node.lock", f"--state {state}: another node runs there")
