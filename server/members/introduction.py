"""The introduction of a client to its peers: what would make all others refuse a round with it."""

from __future__ import annotations

from collections.abc import Iterable

from fedpeft.secure import keys
from fedpeft.secure.keys import Peer, Roster


def check_introduction(
    data: bytes, client: int, others: Iterable[bytes], context: str, registered: str
) -> None:
    """Check how a client introduces itself to its peers, before they are asked to check it.

    Args:
        data: its introduction, see ``Peer``.
        client: its number.
        others: introductions of the clients that were accepted before.
        context: experiment and run, see ``fedpeft.secure.masks.run_context``.
        registered: its registered public key in OpenSSH format; "" = unknown.

    Raises:
        ValueError: another number, a key that is not signed, that another client has, or with which
            nothing can be agreed.
    """
    peer = Peer.from_bytes(data)
    if peer.client != client:
        raise ValueError(f"it introduces itself as client {peer.client}")
    keys.agreed(keys.private_key(bytes(range(keys.KEY_BYTES))), peer.key)
    for other in map(Peer.from_bytes, others):
        if {peer.name, peer.key, peer.verifier} & {other.name, other.key, other.verifier}:
            raise ValueError(f"it has a key of client {other.client}")
    if registered and not Roster.of([registered.encode()]).trusts(peer, context):
        raise ValueError("its keys are not signed by its registered key for this run")
