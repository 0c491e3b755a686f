"""Which examples belong to the client at a node: a part of a simulation's task, or its own files.

A simulation's nodes get their part by the node config; a deployed node has a state folder, in
which ``node.json`` says where its data lies.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Context

from clients import state
from clients.errors import Refusal
from clients.partitioning import partition
from clients.state import NodeSettings
from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.settings import TaskSection
from fedpeft.tasks import Examples, described
from fedpeft.tasks.readers import EXTENSIONS

#: Keys of a simulated node's config: the partition's file, and the folders of the clients'
#: ledgers and personal parameters.
PARTITION_FILE, LEDGER_FOLDER = "partition-file", "privacy-folder"
PERSONAL_FOLDER = "personal-folder"
#: Key of a deployed node's config: its state folder.
STATE = "state"


@dataclass(frozen=True)
class LocalData:
    """A client's data for one experiment.

    Attributes:
        runtime: of the experiment; its task holds this client's examples, maybe others' too.
        client: number of the client in the run, from 0; -1 where nobody has said it yet.
        train: rows of the task's training examples that are this client's, int64 [n].
        dev: rows of its evaluation examples that are, int64 [m].
        ledger: file of the client's privacy ledger.
        personal: file of the parameters that stay here.
        owner: whose ledger it is.
        files: path of the node's own data; empty where the client has a part of a task.
        rows: examples that could be trained on, those held out of the same file too.
        max_epsilon: what the owner of the data lets runs spend, None = what the run says.
    """

    runtime: Runtime
    client: int
    train: np.ndarray
    dev: np.ndarray
    ledger: Path
    personal: Path
    owner: str
    files: str = ""
    rows: int = 0
    max_epsilon: float | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of what the ledger is about: own files whole, or the rows of the part."""
        if self.files:
            return files_digest(self.files)
        return examples_digest(self.runtime.task.train.select(self.train))


def local_data(toml: str, context: Context, client: int = -1, run: str = "") -> LocalData:
    """Return the data of the client at a node.

    Args:
        toml: the experiment.
        context: the node's.
        client: number that the server has given it; a node with a partition's number keeps that.
        run: what names the run at a deployed node.

    Raises:
        UserError: the data does not fit the experiment.
        Refusal: the rules of the node do not let it take part.
    """
    if STATE in context.node_config:
        return _deployed(toml, Path(str(context.node_config[STATE])), client, run)
    return _simulated(toml, context)


def ledger_path(folder: Path, client: int) -> Path:
    """Return the ledger of a simulated client."""
    return folder / f"client-{client:05d}.sqlite"


def _simulated(toml: str, context: Context) -> LocalData:
    config = context.node_config
    client, clients = int(config["partition-id"]), int(config["num-partitions"])
    runtime = runtime_of(toml)
    rows = _saved_partition(str(config[PARTITION_FILE]))[client]
    return LocalData(
        runtime,
        client,
        rows,
        _share(client, clients, len(runtime.task.dev)),
        ledger_path(Path(str(config[LEDGER_FOLDER])), client),
        Path(str(config[PERSONAL_FOLDER])) / f"client-{client:05d}.safetensors",
        f"client {client}",
    )


def _deployed(toml: str, folder: Path, client: int, run: str) -> LocalData:
    settings, experiment = NodeSettings.read(folder), Experiment.load(toml)
    if experiment.backbone not in settings.allowed:
        raise Refusal(
            f"this node does not load backbone '{experiment.backbone}', only "
            f"{', '.join(settings.allowed)}; `fedpeft node up --backbone` names others"
        )
    if settings.data and described(experiment.task) is None:
        raise Refusal("task.labels is empty: this node does not tell which labels its data has")
    files = files_of(settings, experiment.task)
    content = files_digest(settings.data) if settings.data else ""
    runtime, ledger = runtime_of(toml, files, content), state.ledger_path(folder)
    own = state.personal(folder) / f"{experiment.digest}{run}.safetensors"
    train, dev = (np.arange(len(each)) for each in (runtime.task.train, runtime.task.dev))
    if settings.partition is None:
        owner, limit = "this node", settings.max_epsilon
        rows = len(train) + (0 if files.dev or files.name != "custom" else len(dev))
        return LocalData(
            runtime, client, train, dev, ledger, own, owner, settings.data, rows, limit
        )
    client, clients = settings.partition, experiment.federation.clients
    if client >= clients:
        raise Refusal(f"this node has part {client} of {clients}: count the parts from 0")
    train, dev = _partition(toml, files, content)[client], _share(client, clients, len(dev))
    owner, limit = f"part {client} of {clients}", settings.max_epsilon
    return LocalData(runtime, client, train, dev, ledger, own, owner, "", len(train), limit)


def files_of(settings: NodeSettings, section: TaskSection) -> TaskSection:
    """Return a task with the node's own files in place of any that the experiment names.

    Raises:
        Refusal: the task needs files, and the node has none for it.
        UserError: its folder has no file of this kind.
    """
    data = Path(settings.data) if settings.data else None
    if section.name != "custom":
        return section.model_copy(update={"path": str(data or "")})
    if data is None:
        raise Refusal("task 'custom' needs this node's own files: `fedpeft node up --data ...`")
    train, dev = (data, None) if data.is_file() else (_table(data, "train"), _table(data, "dev"))
    if train is None:
        raise UserError(f"'{data}': holds no train{'|'.join(EXTENSIONS)}")
    return section.model_copy(update={"path": "", "train": str(train), "dev": str(dev or "")})


def _table(folder: Path, stem: str) -> Path | None:
    """Return the folder's table file of a split, if there is one."""
    files = (folder / f"{stem}{extension}" for extension in EXTENSIONS)
    return next(filter(Path.is_file, files), None)


def files_digest(data: str) -> str:
    """Return SHA-256 over a file's bytes, or over those of all files in a folder."""
    path, total = Path(data), hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            status = file.stat()
            known = status.st_mtime_ns, status.st_size, status.st_ino
            total.update(_file_digest(file, known))
    return total.hexdigest()


def examples_digest(examples: Examples) -> str:
    """Return SHA-256 over the texts and labels of a client's examples, in any order."""
    pairs = examples.text_pair or [""] * len(examples)
    rows = zip(examples.text, pairs, examples.labels, strict=True)
    digests = sorted(
        hashlib.sha256(json.dumps([text, pair, np.asarray(label).tolist()]).encode()).digest()
        for text, pair, label in rows
    )
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _share(client: int, clients: int, examples: int) -> np.ndarray:
    """Return a client's share of the dev set; the shares are disjoint and make up the whole."""
    return np.arange(client, examples, clients)


@lru_cache(maxsize=2)
def _saved_partition(path: str) -> list[np.ndarray]:
    clients = json.loads(Path(path).read_text(encoding="utf-8"))["clients"]
    return [np.asarray(rows, dtype=np.int64) for rows in clients]


@lru_cache(maxsize=2)
def _partition(toml: str, files: TaskSection, content: str) -> list[np.ndarray]:
    runtime = runtime_of(toml, files, content)
    return partition(runtime.task, runtime.experiment)


@lru_cache(maxsize=1024)
def _file_digest(file: Path, known: tuple[int, ...]) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
