"""The experiment of a run, kept at a node from the handshake on.

In Flower's context; at a deployed node on disk, as a SuperNode forgets its contexts when it ends.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from flwr.app import ConfigRecord, Context

from clients import state
from clients.data import STATE, LocalData, local_data
from clients.errors import ClientError
from fedpeft.files import write_json

_KEY = "experiment"  # of the context's state
_KEPT = 100  # experiments on disk


def remember(context: Context, toml: str, data: LocalData, run: str = "") -> None:
    """Keep the experiment of a run and the client's number in it."""
    kept = {"toml": toml, "client": data.client}
    if STATE in context.node_config:
        file = _file(context, data.runtime.digest, run)
        write_json(file, kept)
        with suppress(FileNotFoundError):  # another process may be as tidy
            newest = sorted(file.parent.glob("*.json"), key=lambda each: -each.stat().st_mtime)
            for old in newest[_KEPT:]:
                old.unlink(missing_ok=True)
    else:
        context.state[_KEY] = ConfigRecord(kept)


def recall(context: Context, digest: str, run: str = "") -> LocalData:
    """Return the client's data for the experiment with a digest, in a run.

    Raises:
        ClientError: no handshake came before, or the last was about another experiment.
    """
    if STATE in context.node_config:
        file = _file(context, digest, run)
        kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    else:
        kept = context.state.get(_KEY)
    if kept is None:
        raise ClientError("no handshake came before this message")
    data = local_data(str(kept["toml"]), context, int(kept["client"]), run)
    if data.runtime.digest != digest:
        raise ClientError("the message belongs to another experiment than the handshake")
    return data


def _file(context: Context, digest: str, run: str) -> Path:
    if not re.fullmatch("[0-9a-f]{64}", digest) or not re.fullmatch("([0-9a-f]{16})?", run):
        raise ClientError("the message names no experiment by its digest, or no run")
    folder = state.experiments(Path(str(context.node_config[STATE])))
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{digest}{run}.json"
