"""The examples of the client at a node: a part of a simulation's task, or the node's own files.

The node config of a simulated node names its part. That of a deployed node names its state
folder, whose ``node.json`` has the path of its data. Data are read when rows are first used, after
the rules of the node, and only in this module: here any exception becomes a ``DataError``, whose
text stays at the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
from flwr.app import Context

from clients.described import require_described
from clients.errors import Refusal, checking_settings, reading
from clients.files import examples_digest, files_of
from clients.folder import NodeFolder, NodeSettings
from clients.partition import Partition
from clients.partitioning import partition
from fedpeft.adversary import poisoned, poisons
from fedpeft.backbones.checkpoints import backbone_digest
from fedpeft.batches.encoded import Encoded
from fedpeft.experiment.config import Experiment, parsed
from fedpeft.files import files_digest
from fedpeft.privacy.plan import default_delta
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.secure.masks import run_context
from fedpeft.tasks import described

#: Keys of a simulated node's config: the folders of the clients' ledgers and of the vectors that
#: they keep.
LEDGER_FOLDER, KEPT_FOLDER = "privacy-folder", "kept-folder"
#: Key of a simulation's run config and node configs: ``Runtime.content`` when the run began.
CONTENT = "content"
#: Key of a deployed node's config: its state folder.
STATE = "state"


@dataclass(frozen=True)
class Rows:
    """The rows of a client.

    Attributes:
        runtime: its task holds the rows, and possibly those of other clients.
        train: rows of the task's training examples that belong to this client, int64 [n].
        dev: rows of the task's evaluation examples that belong to this client, int64 [m].
    """

    runtime: Runtime
    train: np.ndarray
    dev: np.ndarray


@dataclass(frozen=True)
class LocalData:
    """A client's data for one experiment.

    Attributes:
        runtime: of the experiment, for what depends on no data.
        client: number of the client in the run, from 0; -1 before the server has given it one.
        read: reads the rows.
        ledger: file of the client's privacy ledger.
        keeps: folder of the vectors that the client keeps, see ``clients/kept.py``.
        name: of their files.
        owner: name of the ledger's owner.
        settings: those of the node; None in a simulation.
        run: name of a deployment's run, or "".
    """

    runtime: Runtime
    client: int
    read: Callable[[], Rows]
    ledger: Path
    keeps: Path
    name: str
    owner: str
    settings: NodeSettings | None = None
    run: str = ""

    @cached_property
    def rows(self) -> Rows:
        """The rows, read at the first use.

        Raises:
            DataError: they cannot be read, or do not fit the experiment.
            Withheld: the same, at a node that limits its epsilon.
        """
        with reading(self.limited):
            return self.read()

    @property
    def training(self) -> Encoded:
        """The encoded training examples; a malicious client of a simulation changes some."""
        with reading(self.limited):
            rows, experiment = self.rows, self.runtime.experiment
            if not poisons(experiment, self.client):
                return rows.runtime.training(rows.train)
            task = rows.runtime.task
            own = task.train.select(rows.train)
            return rows.runtime.encode(poisoned(own, experiment, task.info, self.client))

    @property
    def evaluation(self) -> Encoded:
        """The encoded evaluation examples."""
        with reading(self.limited):
            return self.rows.runtime.dev.select(self.rows.dev)

    @property
    def context(self) -> str:
        """The experiment and run, part of everything that is signed or masked for them."""
        return run_context(self.runtime.digest, self.run)

    def kept(self, what: str) -> Path:
        """Return the file of vectors that the client keeps between rounds."""
        return self.keeps / what / f"{self.name}.safetensors"

    @property
    def max_epsilon(self) -> float | None:
        """The data owner's limit over all runs; None = only the run's limit."""
        return self.settings.max_epsilon if self.settings else None

    @property
    def limited(self) -> bool:
        """Whether the owner of the data limits epsilon."""
        return self.max_epsilon is not None

    @property
    def delta(self) -> float:
        """The delta of ``max_epsilon``."""
        delta = self.settings.delta if self.settings else None
        return default_delta(self.examples) if delta is None else delta

    @property
    def examples(self) -> int:
        """The number of training examples that others may know; see ``NodeSettings.examples``."""
        public = self.settings.examples if self.settings else "exact"
        if isinstance(public, int):
            return public
        count = len(self.rows.train)
        return count if public == "exact" else int(float(f"{count:.0e}"))

    @property
    def digest(self) -> str:
        """SHA-256 of the data that the ledger covers: the node's files, or the client's rows."""
        settings = self.settings
        with reading(self.limited):
            if settings and settings.data and settings.partition is None:
                return files_digest(Path(settings.data))
            return examples_digest(self.rows.runtime.task.train.select(self.rows.train))


def local_data(toml: str, context: Context, client: int = -1, run: str = "") -> LocalData:
    """Return the data of the client at a node.

    Args:
        toml: the experiment.
        context: the node's.
        client: number given by the server; a node with a part of the data uses the part's number.
        run: name of the run at a deployed node.

    Raises:
        SettingsError: the experiment is invalid.
        UserError: the node's settings or its folder are damaged.
        Refusal: the experiment names another backbone, or reads the node's data in another way.
        DataError: only the data name the labels, and they cannot be read.
    """
    with checking_settings():
        experiment = parsed(toml)
    if STATE in context.node_config:
        folder = NodeFolder(Path(str(context.node_config[STATE])))
        data = _deployed(experiment, folder, client, run)
    else:
        data = _simulated(experiment, context)
    with reading(data.limited):
        _ = data.runtime.info  # may be read from the data; later checks of settings read none
    return data


def simulated_ledger(folder: Path, client: int) -> Path:
    """Return the privacy ledger of a simulated client."""
    return folder / f"client-{client:05d}.sqlite"


def _simulated(experiment: Experiment, context: Context) -> LocalData:
    config = context.node_config
    client, clients = int(config["partition-id"]), int(config["num-partitions"])
    runtime = runtime_of(experiment, content=str(config.get(CONTENT, "")))

    def read() -> Rows:
        train = partition_of(runtime)[client]
        return Rows(runtime, train, _dev_share(client, clients, len(runtime.task.dev)))

    return LocalData(
        runtime,
        client,
        read,
        ledger=simulated_ledger(Path(str(config[LEDGER_FOLDER])), client),
        keeps=Path(str(config[KEPT_FOLDER])),
        name=f"client-{client:05d}",
        owner=f"client {client}",
    )


def _deployed(experiment: Experiment, folder: NodeFolder, client: int, run: str) -> LocalData:
    settings = NodeSettings.read(folder.path)
    if experiment.backbone not in settings.allowed:
        raise Refusal(
            f"this node does not load backbone '{experiment.backbone}', only "
            f"{', '.join(settings.allowed)}; `fedpeft node up --backbone` names others"
        )
    if settings.data:
        require_described(settings, experiment.task)
    elif experiment.task.name == "custom":
        raise Refusal("task 'custom' needs this node's own files: `fedpeft node up --data ...`")
    owner = "this node"
    if settings.partition is not None:
        client, clients = settings.partition, experiment.federation.clients
        if client >= clients:
            raise Refusal(f"this node has part {client} of {clients}: count the parts from 0")
        owner = f"part {client} of {clients}"
    elif not 0 <= client < experiment.federation.clients:
        raise Refusal(f"client {client}: expected 0 to {experiment.federation.clients - 1}")
    return LocalData(
        _without_data(experiment, settings.weights, backbone_digest(experiment.backbone)),
        client,
        lambda: _read(experiment, settings),
        ledger=folder.ledger,
        keeps=folder.kept,
        name=f"{experiment.digest}{run}",
        owner=owner,
        settings=settings,
        run=run,
    )


def _read(experiment: Experiment, settings: NodeSettings) -> Rows:
    """Read the rows of a deployed node."""
    files = files_of(settings, experiment.task)
    runtime = runtime_of(experiment, files, settings.weights)
    examples = len(runtime.task.dev)
    if settings.partition is None:
        return Rows(runtime, np.arange(len(runtime.task.train)), np.arange(examples))
    train = partition_of(runtime)[settings.partition]
    clients = experiment.federation.clients
    return Rows(runtime, train, _dev_share(settings.partition, clients, examples))


def _dev_share(client: int, clients: int, examples: int) -> np.ndarray:
    """Return the rows of a client's share of the dev set; the shares partition the dev set."""
    return np.arange(client, examples, clients)


@lru_cache(maxsize=4)
def _without_data(experiment: Experiment, weights: str, backbone: str) -> Runtime:
    """Return a runtime for what needs no rows; not one of the few that keep data in memory.

    ``backbone`` is the digest of the backbone's files, see ``backbone_digest``.
    """
    return Runtime(experiment, known=described(experiment.task), weights=weights)


_PARTITIONS: WeakKeyDictionary[Runtime, Partition] = WeakKeyDictionary()


def partition_of(runtime: Runtime) -> Partition:
    """Return the partition of a runtime's training examples, computed once while it lives."""
    if runtime not in _PARTITIONS:
        _PARTITIONS[runtime] = partition(runtime.task, runtime.experiment)
    return _PARTITIONS[runtime]
