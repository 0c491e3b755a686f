"""Simulate a federation: prepare its folder, run it on its engine, read its result."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.app import app as client_app
from clients.app import train_together
from clients.data import CONTENT, KEPT_FOLDER, LEDGER_FOLDER, partition_of
from clients.partition import save
from fedpeft.adversary import target_of
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.plan import client_plan, example_delta, example_plan
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.vectorfile import EXPERIMENT
from server.app import app as server_app
from server.central_privacy import central_plan
from server.runfolder import RESULT, RunFolder
from simulations.cohorts import cohort_size
from simulations.grid import NodeConfig, NodeConfigs
from simulations.local import run_local
from simulations.ray import actors_of, require_ray, run_ray
from simulations.results import new_folder
from simulations.spread import PARTITION
from simulations.tracking import require_trackers, tracked

COHORT = "cohort"  # key of identity.json: clients trained in one batch


def prepare(
    experiment: Experiment, out: Path | None, resume: bool = False
) -> tuple[RunFolder, Runtime]:
    """Load and check everything a run needs, then make its folder with the partition.

    Args:
        experiment: the run's.
        out: its folder; None = a new one, see ``new_folder``.
        resume: whether to continue the run in ``out``.

    Raises:
        UserError: something would stop the run later; nothing is written.
    """
    if out:
        RunFolder.check(out, experiment, resume)
    require_devices(experiment)
    if experiment.engine.kind == "ray":
        require_ray("engine.kind = 'ray'")
    require_trackers(experiment.output.track)
    runtime = runtime_of(experiment)
    rows = partition_of(runtime)
    runtime.load()
    if experiment.adversary.attack == "backdoor":
        target_of(experiment, runtime.task.info)
    _check_privacy(experiment, {*rows.sizes.tolist()})
    folder = RunFolder.create(out or new_folder(experiment), experiment, resume)
    digests = {"data": runtime.data_digest, "partition": rows.digest}
    # A resumed run keeps its cohort size: its bits depend on it.
    cohort = folder.pinned().get(COHORT) or str(cohort_of(runtime))
    folder.pin({**runtime.identity, **digests, COHORT: cohort})
    if not (folder.path / PARTITION).exists():
        save(folder.path / PARTITION, rows, experiment.partition.kind, runtime.task)
    return folder, runtime


def require_devices(experiment: Experiment) -> None:
    """Raise UserError if clients without a speed would have to be in time."""
    federation, why = experiment.federation, "simulated clients have no speed; set"
    if experiment.devices.step_seconds:
        return
    if federation.mode == "async":
        raise UserError(f"federation.mode = 'async': {why} devices.step_seconds")
    if federation.deadline is not None:
        raise UserError(
            f"federation.deadline = {federation.deadline:g}: {why} devices.step_seconds"
        )
    if federation.over_selection > 1:
        raise UserError(
            f"federation.over_selection = {federation.over_selection:g}: {why} devices.step_seconds"
        )


def _check_privacy(experiment: Experiment, sizes: set[int]) -> None:
    """Raise UserError if a client with one of these numbers of examples cannot be private."""
    privacy = experiment.privacy
    if privacy.examples:
        for examples in sorted(sizes):
            example_delta(experiment, examples)
        example_plan(experiment, min(sizes))  # the smallest client has the highest sampling rate
    if privacy.charges_clients:
        client_plan(experiment)
    if privacy.central:
        central_plan(experiment)


def simulate(folder: RunFolder, experiment: Experiment) -> dict[str, Any]:
    """Run a prepared experiment on its engine and track it; return the content of result.json.

    Raises:
        RunFailed: too few clients succeeded in a round; the folder can be resumed.
    """
    folder.checkpoint()  # drops later lines before anything follows the rounds
    with tracked(folder, experiment):
        _run_engine(folder, experiment)
    return json.loads((folder.path / RESULT).read_text(encoding="utf-8"))


def _run_engine(folder: RunFolder, experiment: Experiment) -> None:
    runtime = runtime_of(experiment)
    folder.pin({"data": runtime.data_digest})  # the files may have changed since ``prepare``
    content = {CONTENT: runtime.content}
    run_config: NodeConfig = {"experiment": experiment.to_toml(), "out": str(folder.path)}
    run_config |= content
    clients, engine = experiment.federation.clients, experiment.engine
    shared = node_config(folder.path, experiment) | content
    nodes = NodeConfigs(clients, shared)
    cohort = int(folder.pinned()[COHORT])
    if engine.kind == "ray":
        run_ray(server_app, nodes, run_config, cohort, engine)
    else:
        run_local(server_app, client_app, nodes, run_config, cohort, train_together)


def complete(experiment: Experiment, out: Path) -> dict[str, Any]:
    """Run an experiment in a folder, or resume it; return the content of result.json.

    Raises:
        UserError: see ``prepare``; or another process uses the folder.
        RunFailed: see ``simulate``.
    """
    folder, _ = prepare(experiment, out, resume=(out / EXPERIMENT).is_file())
    with folder.locked():
        return simulate(folder, experiment)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of Flower and the apps: the run's files hold the same facts."""
    levels = {name: logging.getLogger(name).level for name in ("flwr", "server", "clients")}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def cohort_of(runtime: Runtime) -> int:
    """Return the number of clients trained in one batch, see ``simulations.cohorts``."""
    import torch

    experiment, backbone = runtime.experiment, runtime.backbone
    cuda = backbone.device.type == "cuda"
    memory = torch.cuda.get_device_properties(backbone.device).total_memory if cuda else 0
    processes = actors_of(experiment.engine)[0] if experiment.engine.kind == "ray" else 1
    size, lengths = runtime.parameters.layout.size, runtime.lengths
    return cohort_size(experiment, backbone.shape, size, lengths, memory, processes)


def node_config(path: Path, experiment: Experiment) -> NodeConfig:
    """Return the part of the node config that all nodes of a run in ``path`` share."""
    ledgers = Path(experiment.privacy.ledger or path / "privacy")
    return {
        LEDGER_FOLDER: str(ledgers.resolve()),
        KEPT_FOLDER: str((path / "kept").resolve()),
        "num-partitions": experiment.federation.clients,
    }
