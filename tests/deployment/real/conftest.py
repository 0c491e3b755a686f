"""Nodes with their own data files, and a server's state folder that knows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from disturbed import two_nodes

from clients.folder import NodeFolder, NodeSettings
from deployment.loopback import Deployment
from fedpeft.experiment.config import Experiment
from fedpeft.tasks import load_task

#: One client's rows: text and label.
Rows = list[tuple[str, str]]


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Return a server and two nodes for the tests of all files; each run has a name of its own."""
    with two_nodes(tmp_path_factory.mktemp("deployed")) as made:
        yield made


@pytest.fixture(scope="session")
def two_clients() -> list[tuple[Rows, Rows]]:
    """Return (training rows, held-out rows) of two clients with different data."""
    experiment = Experiment.load("", ["task.train_limit=60", "task.eval_limit=24"])
    task = load_task(experiment.task, experiment.seed)
    names = task.info.labels
    train, dev = (
        [(str(text), names[label]) for text, label in zip(split.text, split.labels, strict=True)]
        for split in (task.train, task.dev)
    )
    return [(train[:40], dev[:16]), (train[40:], dev[16:])]


def write_rows(path: Path, rows: Sequence[tuple[str, ...]], columns: str = "text\tlabel") -> None:
    lines = ["\t".join(row) for row in rows]
    path.write_text("\n".join([columns, *lines]) + "\n", encoding="utf-8")


@pytest.fixture
def data_folders(tmp_path: Path, two_clients: list[tuple[Rows, Rows]]) -> list[Path]:
    """Return each client's folder with train.tsv and dev.tsv."""
    folders = []
    for client, (train, dev) in enumerate(two_clients):
        folder = tmp_path / f"data{client}"
        folder.mkdir()
        write_rows(folder / "train.tsv", train)
        write_rows(folder / "dev.tsv", dev)
        folders.append(folder)
    return folders


@pytest.fixture
def pooled(tmp_path: Path, two_clients: list[tuple[Rows, Rows]]) -> list[str]:
    """Return the settings of a simulation of the same two clients."""
    folder = tmp_path / "pooled"
    folder.mkdir()
    rows = [(*row, str(client)) for client, split in enumerate(two_clients) for row in split[0]]
    write_rows(folder / "train.tsv", rows, "text\tlabel\twho")
    write_rows(folder / "dev.tsv", [row for _, dev in two_clients for row in dev])
    return [
        f"task.path={folder}",
        "task.train=train.tsv",
        "task.dev=dev.tsv",
        "partition.kind=natural",
        "partition.column=who",
    ]


@pytest.fixture
def node_state(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a node's state folder."""

    def make(name: str, data: Path | str = "", **settings: object) -> Path:
        state = tmp_path / name
        NodeFolder(state).prepare()
        labels = {"labels": ("negative", "positive")} if data else {}
        NodeSettings(str(data), **{**labels, **settings}).write(state)  # type: ignore[arg-type]
        return state

    return make


@pytest.fixture
def server_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], Path]:
    """Return a function that makes a server's state folder with registered nodes, in order."""

    def make(node_ids: list[int]) -> Path:
        state = tmp_path / "server"
        (state / "runs").mkdir(parents=True, exist_ok=True)
        nodes = [
            {"name": f"site{place}", "node_id": node, "public_key_sha256": "", "added": ""}
            for place, node in enumerate(node_ids)
        ]
        (state / "nodes.json").write_text(json.dumps(nodes))
        monkeypatch.setenv("FEDPEFT_SERVER_STATE", str(state))
        return state

    return make


SETTINGS = [
    "backbone=tiny",
    "method.d=32",
    "task.name=custom",
    "task.labels=negative,positive",
    "federation.clients=2",
    "federation.rounds=3",
    "federation.evaluation=clients",
    "engine.threads=1",
    "engine.cohort=1",  # a node trains one client; in a cohort its bits would be rounded otherwise
    "output.plots=false",
]


@pytest.fixture
def settings() -> list[str]:
    """Return the settings of a run on the nodes' own files."""
    return SETTINGS
