"""The handshake: send the experiment to nodes, and compare what they report with the server's.

A node reports its client, its number of training examples and its identity, see
``Runtime.identity``: version, experiment, projection, layout, labels and backbone. It gets the
experiment once in a run; later handshakes name only its digest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from flwr.app import Message
from flwr.serverapp import Grid

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import Weights
from fedpeft.runtime import COMMON
from fedpeft.version import __version__
from fedpeft.wire.failures import Failure
from fedpeft.wire.messages import (
    INITIAL_REFERENCE,
    RECORD,
    HandshakeReply,
    HandshakeRequest,
    from_fields,
    pack_experiment,
)
from server.exchange.byte_ledger import ByteLedger
from server.exchange.sending import Patience, exchange

log = logging.getLogger(__name__)


def send_handshakes(
    grid: Grid,
    experiment: Experiment,
    proposed: Mapping[int, int | None],
    run: str,
    by_node: ByteLedger,
    informed: Container[int] = (),
) -> tuple[dict[int, Message], dict[int, Failure]]:
    """Send a handshake to nodes; return the replies and the failures by node id.

    Args:
        grid: Flower's grid.
        experiment: the run's; later messages name only its label.
        proposed: node id -> client that the node is to host; None if it knows its client.
        run: name of a deployment's run, or "".
        by_node: counts the bytes, with node ids in place of clients.
        informed: nodes that have the experiment, unless they lost their files.
    """
    digest, packed = bytes.fromhex(experiment.digest), pack_experiment(experiment.to_toml())
    federation = experiment.federation
    # A node that hangs must not delay every round by the timeout of a training.
    timeout = min(federation.timeout, federation.node_wait)

    def send(
        nodes: Iterable[int], with_text: bool
    ) -> tuple[dict[int, Message], dict[int, Failure]]:
        def content(node_id: int) -> HandshakeRequest:
            return HandshakeRequest(
                version=__version__,
                digest=digest,
                experiment=packed if with_text else b"",
                client=proposed[node_id],
                run=run,
            )

        return exchange(
            grid, "handshake", content, {n: n for n in nodes}, by_node, Patience(timeout)
        )

    briefly, failed = send([node_id for node_id in proposed if node_id in informed], False)
    known = {n: reply for n, reply in briefly.items() if not _lost_experiment(reply)}
    others = [n for n in proposed if n not in known and n not in failed]
    replies, failed_too = send(others, True)
    return {**known, **replies}, {**failed, **failed_too}


def _lost_experiment(reply: Message) -> bool:
    try:
        return bool(read_report(reply).unknown)
    except Exception:  # a reply may hold anything; it is refused later
        return False


@dataclass(frozen=True)
class Report:
    """A node's reply to the handshake; its content is not trusted.

    Attributes:
        client: number of the client.
        examples: number of training examples.
        identity: the reported keys of ``Runtime.identity``; digests as hexadecimal text.
        unknown: whether the node needs the experiment.
        reference: name of the vector that the client holds.
        peer: how the client introduces itself to the others, for sums under masks.
        start: name of the start that the client holds.
        weights: form in which the node holds the frozen weights.
    """

    client: int
    examples: int
    identity: dict[str, str]
    unknown: bool
    reference: bytes = INITIAL_REFERENCE
    peer: bytes = b""
    weights: str = "float32"
    start: bytes = b""


def read_report(reply: Message) -> Report:
    """Return the content of a node's reply.

    Raises:
        ValueError: a field is invalid.
        Exception: any other, if the reply is malformed.
    """
    sent = from_fields(HandshakeReply, reply.content.get(RECORD))
    digests = {name: getattr(sent, name).hex() for name in COMMON if name != "version"}
    reported = {"version": sent.version, **digests}
    identity = {name: value for name, value in reported.items() if value}
    if sent.weights not in get_args(Weights):  # not quoted: it may be anything
        raise ValueError(f"weights is none of {', '.join(get_args(Weights))}")
    return Report(
        sent.client,
        sent.examples,
        identity,
        bool(sent.unknown),
        sent.reference,
        sent.peer,
        sent.weights,
        sent.start,
    )


def with_backbone(identity: Mapping[str, str], reports: Collection[Report]) -> dict[str, str]:
    """Return the identity; if it has no backbone, with that of most nodes.

    Only nodes that agree with the rest of the identity count.
    """
    if "backbone" in identity:
        return {**identity}
    votes = Counter(
        report.identity["backbone"]
        for report in reports
        if "backbone" in report.identity and not differences(identity, report.identity)
    )
    if not votes:
        return {**identity}
    most = max(votes.values())
    log.info("the run uses the backbone of %d of %d nodes", most, len(reports))
    return {**identity, "backbone": min(name for name in votes if votes[name] == most)}


def differences(identity: Mapping[str, str], reported: Mapping[str, str]) -> str:
    """Return how a node's identity differs from the server's, for people; empty if it does not."""
    differing = [key for key, value in identity.items() if reported.get(key) != value]
    if "version" in differing and "version" in reported:
        # A node of another version reports nothing else.
        differing = [key for key in differing if key in reported]
    return "; ".join(
        f"{key} is {_short(reported.get(key))}, expected {_short(identity[key])}"
        for key in differing
    )


def _short(value: object) -> str:
    """Return a version whole and a digest by its first 12 digits."""
    return str(value)[:12]
