"""Real nodes that sum their updates under masks: each knows the keys of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from disturbed import TIMING

from deployment.hosting.keys import make_node
from deployment.loopback import Deployment, command, deployment
from deployment.server.registration import add_node


@contextmanager
def nodes_with_rosters(folder: Path, names: Sequence[str]) -> Iterator[Deployment]:
    """Yield a deployment with these nodes, of which each trains one part of the data."""
    with deployment(folder, timing=TIMING) as made:
        public = []
        for name in names:
            public.append(make_node(made.keys, name)[1].read_text())
            add_node(made.state, made.keys / f"{name}.pub")
        for part, name in enumerate(names):
            roster(made, name).write_text("".join(public))
            made.write_timing(name)
            made.start(name, *node_up(made, name, part))
        for name in names:
            made.wait_for(name, "the node is up")
        yield made


def roster(deployed: Deployment, name: str) -> Path:
    """Return the file with the public keys that a node trusts."""
    return deployed.keys / f"{name}.roster"


def node_up(deployed: Deployment, name: str, part: int) -> list[str]:
    """Return the command line of a node with one part of the data."""
    keys = deployed.keys
    return command(
        *("node", "up", "--superlink", f"localhost:{deployed.port}", "--backbone", "tiny"),
        *("--key", str(keys / name), "--ca", str(keys / "ca.crt")),
        *("--roster", str(roster(deployed, name)), "--partition", str(part)),
        *("--state", str(deployed.node(name))),
    )
