"""The state folder of a node: its files, and the settings given to ``fedpeft node up``."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedpeft import locks
from fedpeft.errors import UserError
from fedpeft.files import PRIVATE, write_together

SETTINGS = "node.json"
INCLUDED = ("minilm", "tiny")  # backbones that come with an installation
MAX_VECTOR = 50_000_000  # 200 MB; full fine-tuning of MiniLM has 22 million numbers
_FIELDS = {
    "data": (str,),
    "partition": (int, type(None)),
    "max_epsilon": (float, int, type(None)),
    "allow": (list,),
    "task": (str,),
    "text": (str,),
    "text_pair": (str,),
    "label": (str,),
    "source": (str,),
    "target": (str,),
    "kind": (str,),
    "labels": (list,),
    "examples": (str, int),
    "delta": (float, type(None)),
    "max_vector": (int,),
    "key": (str,),
    "roster": (str,),
    "colluders": (int,),
    "weights": (str,),
    "sums": (bool,),
}
_ADDED = {"sums": True}  # settings that folders of earlier versions lack


@dataclass(frozen=True)
class NodeSettings:
    """The data of a node, how they are read, and the limits it sets for every run."""

    #: Absolute path of a file or folder; empty for a trial with a task that makes its own data.
    data: str
    #: The part of the data that this client uses, for trials; None = all of it.
    partition: int | None = None
    #: Refuse rounds that would spend more, and runs without privacy for examples.
    max_epsilon: float | None = None
    #: The only backbones that a run may name; they are loaded when the node starts. Empty: those
    #: of INCLUDED, loaded on request. Any other name would be a path or download that the server
    #: chose.
    allow: tuple[str, ...] = ()
    #: The task of the data; the next seven are those of task "custom", named as in ``[task]``.
    #: A run that names others is refused: the server could otherwise query columns and labels.
    task: str = "custom"
    text: str = "text"
    text_pair: str = ""
    label: str = "label"
    source: str = "source"
    target: str = "target"
    kind: str = "classes"
    labels: tuple[str, ...] = ()
    #: The number of examples that the server learns: "exact", "rounded" or this number. DP-SGD
    #: samples at the rate that follows from it.
    examples: str | int = "exact"
    #: The delta of ``max_epsilon``; None = 1 / n^1.1 for n examples, counted as above.
    delta: float | None = None
    #: Refuse methods with more trained numbers.
    max_vector: int = MAX_VECTOR
    #: Absolute paths of the node's private key and of the public keys of the nodes that it trusts
    #: in sums under masks. Without a roster it refuses such runs.
    key: str = ""
    roster: str = ""
    #: Refuse sums that protect from fewer colluding clients.
    colluders: int = 0
    #: Form in which this node holds the frozen weights; "" = that of the run.
    weights: str = ""
    #: Whether this node sends sums of its features, from which a head can start.
    sums: bool = True

    @property
    def sends_sums(self) -> bool:
        """Whether it sends sums of its features; they tell how many examples each class has."""
        return self.sums and self.examples == "exact"

    @property
    def allowed(self) -> tuple[str, ...]:
        """The backbones that an experiment may name."""
        return self.allow or INCLUDED

    @classmethod
    def read(cls, state: Path) -> NodeSettings:
        """Return the settings of the node with this state folder.

        Raises:
            UserError: the file is missing or damaged.
        """
        path = state / SETTINGS
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; 'fedpeft node up' makes it") from None
        except (OSError, ValueError):
            values = None
        if not isinstance(values, dict) or {*_ADDED, *values} != set(_FIELDS):
            raise UserError(f"{path}: damaged; start 'fedpeft node up' again")
        values = {**_ADDED, **values}
        for name, kinds in _FIELDS.items():
            if type(values[name]) not in kinds:
                raise UserError(f"{path}: damaged at '{name}'; start 'fedpeft node up' again")
        return cls.of(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> NodeSettings:
        """Return the settings with these values, as JSON gives them."""
        lists = {key: tuple(map(str, values[key])) for key in ("allow", "labels")}
        return cls(**{**values, **lists})

    def write(self, state: Path) -> None:
        """Write the settings into a state folder."""
        content = json.dumps(asdict(self), indent=2) + "\n"
        write_together({state / SETTINGS: (content.encode(), PRIVATE)}, replace=True)


@dataclass(frozen=True)
class NodeFolder:
    """The files in the state folder of a node."""

    path: Path

    @property
    def socket(self) -> Path:
        """The socket on which the resident worker listens."""
        return self.path / "worker.sock"

    @property
    def ledger(self) -> Path:
        """The privacy ledger of the node."""
        return self.path / "privacy.sqlite"

    @property
    def runtime(self) -> Path:
        """The folder of the keys with which the processes of the node authenticate each other."""
        return self.path / "runtime"

    @property
    def log(self) -> Path:
        """The log that all processes of the node append to."""
        return self.path / "node.log"

    @property
    def processes(self) -> Path:
        """The processes of the node, see :mod:`deployment.hosting.record`."""
        return self.path / "processes.json"

    @property
    def last_message(self) -> Path:
        """The last message that the worker answered."""
        return self.path / "last-message.json"

    @property
    def messages(self) -> Path:
        """The record of the node's messages, see :mod:`deployment.node.traffic`."""
        return self.path / "messages.jsonl"

    @property
    def old_messages(self) -> Path:
        """Earlier messages, from before ``messages`` became too large."""
        return self.path / "messages.old.jsonl"

    @property
    def tunnel(self) -> Path:
        """The state of the connection to the server, written by the tunnel."""
        return self.path / "tunnel.json"

    @property
    def unknown_key(self) -> Path:
        """A file that is there while the server does not know the node's key."""
        return self.path / "unknown-key"

    @property
    def asked(self) -> Path:
        """When the SuperNode last asked for work, see :mod:`deployment.tunnel.asking`."""
        return self.path / "asked"

    @property
    def computes(self) -> Path:
        """The lock file of the processes that compute replies."""
        return self.path / "computes.lock"

    @property
    def experiments(self) -> Path:
        """The folder of the experiments received at handshakes."""
        return self.path / "experiments"

    @property
    def attempts(self) -> Path:
        """The folder of the last train request of each run, with its reply."""
        return self.path / "attempts"

    @property
    def kept(self) -> Path:
        """The folder of the vectors that the client keeps between rounds."""
        return self.path / "kept"

    def prepare(self) -> None:
        """Make the state folder, or take over an existing one, with mode 0700.

        Raises:
            UserError: it cannot be made or written, or belongs to another user.
        """
        option = f"--state {self.path}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.path.stat().st_uid != os.geteuid():
                raise UserError(f"{option}: belongs to another user; use a folder of your own")
            self.path.chmod(0o700)
            for folder in (self.experiments, self.path / "flwr", self.path / "bin"):
                folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self.log, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            reason = error.strerror or "not a folder"
            raise UserError(f"{option}: cannot be written ({reason})") from None

    def secret(self) -> Path:
        """Return the file with the secret that the node's processes share; make it if missing."""
        path = self.path / "secret"
        if not path.exists():
            write_together({path: (secrets.token_hex(32).encode(), PRIVATE)})
        return path

    def locked(self) -> AbstractContextManager[None]:
        """Lock the state folder against a second node; a killed node releases its lock.

        Raises:
            UserError: another node runs there.
        """
        return locks.locked(
            self.path / "node.lock", f"--state {self.path}: another node runs there"
        )
