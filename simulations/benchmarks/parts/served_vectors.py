"""Made-up vectors of one setting, and texts, for the benchmarks of serving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from deployment.serving.catalog import Catalog, Entry, open_catalog
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import TaskSection
from fedpeft.randomness import generator
from fedpeft.runs.trained import describe_vector
from fedpeft.runs.vectorfile import vector_bytes
from fedpeft.runtime import Runtime
from fedpeft.tasks import load_task


def vector_files(settings: Sequence[str], count: int) -> Iterator[bytes]:
    """Yield the contents of vector files: the first vector of an experiment and normal noise."""
    experiment = Experiment.load("", settings)
    runtime = Runtime(experiment)
    start = runtime.parameters.initial(experiment.seed)
    about = describe_vector(runtime, runtime.identity)
    for number in range(count):
        noise = generator(experiment.seed, "served", 0, number).normal(0, 0.1, len(start))
        yield vector_bytes((start + noise).astype(start.dtype), about)


def filled(catalog: Catalog | None, prefix: str, files: Iterator[bytes], path: Path) -> Catalog:
    """Return a catalog with vectors ``prefix0``, ``prefix1``, ...; a new one if there is none.

    Args:
        catalog: the catalog to fill.
        prefix: of the names.
        files: contents of the vectors' files.
        path: for the first file, which a new catalog reads.
    """
    for number, content in enumerate(files):
        if catalog is None:
            path.write_bytes(content)
            catalog = open_catalog(path, 1_000_000)
        catalog.receive(f"{prefix}{number}", content)
    assert catalog is not None, "no files"
    return catalog


def entries(catalog: Catalog, prefix: str) -> list[Entry]:
    """Return the entries whose names start with ``prefix``."""
    return [catalog[name] for name in catalog.names() if name.startswith(prefix)]


def texts(task: str, path: str, count: int) -> list[str]:
    """Return evaluation texts of a task in random order, repeated if there are too few."""
    section = TaskSection(name=task, path=path, train_limit=8)
    dev = [str(text) for text in load_task(section).dev.text]
    draw = generator(0, "served-texts")
    return [
        dev[row % len(dev)]
        for row in np.concatenate(
            [draw.permutation(len(dev)) for _ in range(-(-count // len(dev)))]
        )[:count]
    ]
