"""Introductions for which all clients would refuse a round, and what the server says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpeft.secure import keys
from fedpeft.secure.keys import Peer
from server.members.introduction import check_introduction

CONTEXT = "run"


def introduced(client: int) -> Peer:
    return keys.introduced(keys.simulated(0, client), CONTEXT, client, bytes([client + 1]) * 32)


def check(peer: bytes, client: int = 0, others: tuple[int, ...] = (), registered: int = 0) -> None:
    known = (introduced(other).to_bytes() for other in others)
    line = keys.public_line(keys.simulated(0, registered)).decode()
    check_introduction(peer, client, known, CONTEXT, line)


def test_a_client_that_introduces_itself_is_accepted() -> None:
    check(introduced(0).to_bytes(), others=(1, 2))
    check_introduction(introduced(0).to_bytes(), 0, [], CONTEXT, "")  # its public key is unknown


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (introduced(0).to_bytes()[:-1], "a peer has 171 bytes, expected 172"),
        (introduced(1).to_bytes(), "introduces itself as client 1"),
        (replace(introduced(0), key=bytes(32)).to_bytes(), "shared key"),
        (replace(introduced(0), key=introduced(1).key).to_bytes(), "has a key of client 1"),
        (replace(introduced(0), name=introduced(1).name).to_bytes(), "has a key of client 1"),
        (replace(introduced(0), verifier=introduced(1).verifier).to_bytes(), "a key of client 1"),
        (replace(introduced(0), signature=bytes(96)).to_bytes(), "not signed by its registered"),
        (replace(introduced(0), verifier=bytes(32)).to_bytes(), "not signed by its registered"),
    ],
)
def test_an_introduction_that_all_others_would_refuse_is_refused(
    peer: bytes, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        check(peer, others=(1,))


def test_a_key_of_another_site_is_not_the_registered_one() -> None:
    with pytest.raises(ValueError, match="not signed by its registered key"):
        check(introduced(0).to_bytes(), registered=1)
