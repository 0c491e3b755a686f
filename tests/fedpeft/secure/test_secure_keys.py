"""Derived keys against the implementation of ``cryptography``, and signatures of rounds."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpeft.secure import keys
from fedpeft.secure.keys import Peer
from fedpeft.secure.parts import Member, members, peers_of

DRAW = np.random.default_rng(0)


def test_derived_keys_are_those_of_hkdf() -> None:
    for secret in (DRAW.bytes(16), DRAW.bytes(32), DRAW.bytes(100)):
        info = f"{keys.DOMAIN}|pair|3|{b'ab'.hex()}".encode()
        expected = HKDF(SHA256(), 32, None, info).derive(secret)
        assert keys.derived(secret, "pair", 3, b"ab") == expected


def test_two_keys_agree() -> None:
    one, other = DRAW.bytes(32), DRAW.bytes(32)
    first = keys.agreed(keys.private_key(one), keys.public_key(other), "test")
    assert first == keys.agreed(keys.private_key(other), keys.public_key(one), "test")


def test_peers_and_members_are_read_as_written() -> None:
    peers = [keys.introduced(keys.simulated(0, c), "run", c, DRAW.bytes(32)) for c in range(3)]
    assert [*peers_of(b"".join(peer.to_bytes() for peer in peers)).values()] == peers
    made = [Member.signed(DRAW.bytes(32), "round", c, DRAW.bytes(32), b"s" * 16) for c in range(3)]
    assert [*members(b"".join(member.to_bytes() for member in made))] == made


def test_only_the_key_of_the_run_signs_a_round() -> None:
    private, key = DRAW.bytes(32), DRAW.bytes(32)
    peer = keys.introduced(keys.simulated(0, 1), "run", 1, private)
    member = Member.signed(private, "round", 1, key, b"s" * 16)
    assert member.is_signed(peer.verifier, "round")
    assert not member.is_signed(peer.verifier, "another round")
    other = Peer.from_bytes(peer.to_bytes()[:-1] + b"x")
    assert not keys.simulated_roster(0, 2).trusts(other, "run")
    assert not Member.signed(key, "round", 1, key, b"s" * 16).is_signed(peer.verifier, "round")
    assert not member.is_signed(b"short", "round")
