"""The files of a node, and digests of their content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from clients.described import described
from clients.folder import NodeSettings
from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.tasks import Examples
from fedpeft.tasks.readers import EXTENSIONS, only_file


def files_of(settings: NodeSettings, section: TaskSection | None = None) -> TaskSection:
    """Return a task section that names the node's files instead of the experiment's.

    A node that limits its epsilon evaluates nothing, so it holds out nothing: which rows are held
    out depends on the number of rows, so one row more or less would change the training set.

    Args:
        settings: the node's.
        section: the experiment's, which decides how many rows are used; None = all.

    Raises:
        UserError: the node's folder has no training file, or two of a split.
    """
    section = described(settings) if section is None else section
    if section.name != "custom":
        return section.model_copy(update={"path": settings.data})
    data = Path(settings.data)
    folder = not data.is_file()
    train, dev = (only_file(data, "train"), only_file(data, "dev")) if folder else (data, None)
    if train is None:
        raise UserError(f"'{data}': holds no train{'|'.join(EXTENSIONS)}")
    if dev is None and settings.max_epsilon is not None:
        dev = train
    return section.model_copy(update={"path": "", "train": str(train), "dev": str(dev or "")})


def examples_digest(examples: Examples) -> str:
    """Return the SHA-256 over the texts and labels of a client's examples, in any order."""
    pairs = examples.text_pair or [""] * len(examples)
    labels = examples.targets or [np.asarray(label).tolist() for label in examples.labels]
    rows = zip(examples.text, pairs, labels, strict=True)
    digests = sorted(hashlib.sha256(json.dumps(row).encode()).digest() for row in rows)
    return hashlib.sha256(b"".join(digests)).hexdigest()
