"""Finished runs on the tiny backbone, each made once a process, and vectors that nobody trained."""

from __future__ import annotations

import atexit
import copy
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
from models import small_backbone
from small_families import small_family, small_language

from fedpeft.backbones.loading import load_backbone
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import Runtime
from fedpeft.trained import describe_vector
from fedpeft.vectorfile import vector_bytes
from simulations.simulation import prepare, simulate

SMALL_RUN = (
    "backbone=tiny",
    "task.train_limit=48",
    "task.eval_limit=24",
    "federation.clients=2",
    "federation.rounds=1",
    "local.batch_size=8",
    "local.lr=0.02",
    "engine.threads=1",
    "engine.device=cpu",
    "output.plots=false",
)


def small(*overrides: str) -> Experiment:
    """Return a small experiment."""
    return Experiment.load("", [*SMALL_RUN, *overrides])


def method(name: str, settings: dict[str, object]) -> list[str]:
    """Return the overrides that choose a method."""
    return [f"method.name={name}", *(f"method.{key}={value}" for key, value in settings.items())]


@lru_cache
def _home() -> Path:
    path = Path(tempfile.mkdtemp(prefix="fedpeft-finished-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@lru_cache
def finished_run(*overrides: str) -> Path:
    """Return the folder of a finished run; tests do not change it."""
    experiment = small(*overrides)
    folder, _ = prepare(experiment, _home() / f"run{len(list(_home().iterdir()))}")
    simulate(folder, experiment)
    return folder.path


@lru_cache
def saved_backbone(name: str) -> str:
    """Return a folder from which transformers loads a backbone that is not a folder itself.

    "bert" is the small random one of three blocks, which reads at most 70 tokens.
    """
    backbone = small_backbone(name) if name == "bert" else load_backbone(name, "cpu", "float32")
    folder = _home() / f"backbone-{name}"
    copy.deepcopy(backbone.model).float().save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return str(folder)


@lru_cache
def saved_family(family: str, writes: bool = False) -> str:
    """Return a folder of a small backbone of a family in float32, see ``small_families``."""
    backbone = small_language(family) if writes else small_family(family)
    folder = _home() / f"family-{family}-{writes}"
    model = copy.deepcopy(backbone.language if writes else backbone.model).float()
    model.set_attn_implementation("eager")
    model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return str(folder)


def made_up(path: Path, experiment: Experiment, scale: float = 0.1) -> Path:
    """Write the vector's file of a run that never was: the first vector and random numbers."""
    runtime = Runtime(experiment)
    start = runtime.parameters.initial(experiment.seed)
    noise = np.random.default_rng(5).normal(0, scale, len(start))
    vector = (start + noise).astype(start.dtype)
    path.write_bytes(vector_bytes(vector, describe_vector(runtime, runtime.identity)))
    return path
