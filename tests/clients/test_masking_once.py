"""A round is prepared and masked once, for one request: a second sum would reveal an update.

Each test of an attack is named in ``docs/explanation/secure-aggregation-proofs.md``.
"""

from __future__ import annotations

import numpy as np
import pytest
from sums import BITS, WORK, Federation, updates

from clients.errors import ClientError
from clients.secure.masking import Masking, Work
from clients.secure.preparation import prepare


def test_one_update_is_not_masked_for_a_second_set_of_members(ten: Federation) -> None:
    """Otherwise the difference of two sums would be one update."""
    prepared, plain = ten.prepare(), updates(ten.clients)
    for client in ten.clients:
        ten.mask(prepared, client, plain[client])
    less = {client: made for client, made in prepared.items() if client != 9}
    with pytest.raises(ClientError, match="have masked an update for others"):
        ten.mask(less, 0, plain[0])


def test_a_round_is_prepared_once(ten: Federation) -> None:
    """A client would receive the same shares again, and could reveal the other one of each."""
    first = ten.prepare()
    assert ten.prepare() == first  # a repeated request
    for client in ten.clients:
        ten.mask(first, client, updates(ten.clients)[client])
    ten.reveal(1, range(10))
    assert ten.prepare() == first  # still the same secrets, and what was revealed is kept
    with pytest.raises(ClientError, match="other survivors"):
        ten.reveal(1, [1, *range(2, 10)])
    ten.prepare(2)
    with pytest.raises(ClientError, match="round 2 was prepared"):
        prepare(ten.data[1], 1, ten.listed())


def test_a_round_is_not_prepared_for_a_second_list(ten: Federation) -> None:
    """Otherwise a server asks until the random holders of a client's shares suit it."""
    ten.prepare()
    for listed in (ten.listed(range(9)), ten.listed([0, *range(2, 10)])):
        with pytest.raises(ClientError, match="round 1 was prepared, for its list of clients"):
            prepare(ten.data[0], 1, listed)


def test_keys_of_a_round_are_for_one_request(ten: Federation) -> None:
    """Otherwise a server learns whether two of its vectors lead to the same update."""
    prepared, plain = ten.prepare(), updates(ten.clients)
    ten.mask(prepared, 0, plain[0])
    with pytest.raises(ClientError, match="have masked an update for others"):
        ten.masking(prepared, 0, work=(b"another", 1.0, 1.0))


def test_keys_do_not_mask_a_second_update(ten: Federation) -> None:
    prepared, plain = ten.prepare(), updates(ten.clients)
    first = ten.mask(prepared, 0, plain[0])
    for one, other in zip(ten.mask(prepared, 0, plain[0]), first, strict=True):
        np.testing.assert_array_equal(one, other)  # the same request again
    with pytest.raises(ClientError, match="have masked another update"):
        ten.mask(prepared, 0, plain[1])


def test_shares_of_another_round_are_refused(ten: Federation) -> None:
    old, new = ten.prepare(1), ten.prepare(2)
    new[5] = old[5]
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        ten.masking(new, 0, 2)
    with pytest.raises(ClientError, match="round 1 was not prepared"):
        ten.masking(old, 0)


def test_a_round_outside_of_the_run_is_not_prepared(ten: Federation) -> None:
    for number in (0, -1, 3):
        with pytest.raises(ClientError, match=f"round {number}: expected 1 to 2"):
            ten.prepare(number)


@pytest.mark.parametrize(
    "other", [(b"another", 1.0, 1.0), (b"vector", 1e9, 1.0), (b"vector", 1.0, 1e9)]
)
def test_the_masks_of_clients_with_other_work_do_not_cancel(ten: Federation, other: Work) -> None:
    """A vector, bound or weight at which the updates of all others vanish: the sum says nothing."""
    prepared, zeros = ten.prepare(), np.zeros(6400, np.uint64)
    zeros[:10] = 1
    masked = {
        client: ten.mask(prepared, client, zeros, work=WORK if client == 0 else other)
        for client in ten.clients
    }
    shares = {client: ten.reveal(client, masked) for client in ten.clients[:8]}
    levels, _ = ten.total(prepared, masked, shares)
    counts = np.bincount(levels.astype(int) * 64 >> BITS, minlength=64)
    assert ((counts - 100.0) ** 2 / 100.0).sum() < 130  # uniform, as without any unmasking


def test_a_wrong_number_of_sealed_shares_is_refused(ten: Federation) -> None:
    prepared = ten.prepare()
    listed, sealed = ten.members(prepared), ten.sealed(prepared, 0)
    for wrong in (sealed + bytes(1), sealed + bytes(32)):
        with pytest.raises(ValueError, match="a list has"):
            Masking(ten.data[0], 1, listed, wrong, WORK)
