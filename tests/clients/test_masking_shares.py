"""A client reveals one share of each peer, once, and only to enough survivors.

Each test of an attack is named in ``docs/explanation/secure-aggregation-proofs.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sums import Federation, mask_all, updates

from clients.errors import ClientError
from clients.secure import secrets
from fedpeft.experiment.config import Experiment
from fedpeft.secure.keys import SEED_BYTES

Quick = Callable[..., Experiment]


def test_split_lists_of_survivors_below_the_threshold_are_refused(ten: Federation) -> None:
    """The attack of reference/secure_aggregation.md: half of the clients survive for one half."""
    mask_all(ten)
    for survivors in ([0, 1, 2, 3, 4], [*range(7)]):
        with pytest.raises(ClientError, match="fewer than the threshold of 8"):
            ten.reveal(0, survivors)


def test_survivors_below_the_number_that_noise_is_calibrated_for_are_refused(
    quick: Quick, tmp_path: Path
) -> None:
    noise = ["privacy.unit=client", "privacy.client_noise=secure", "privacy.epsilon=4"]
    settings = ["federation.secure=true", "federation.clients=10", "secure.threshold=9", *noise]
    ten = Federation(quick(*settings), tmp_path)
    mask_all(ten)
    with pytest.raises(ClientError, match="8 survivors are fewer than the threshold of 9"):
        ten.reveal(0, range(8))
    ten.reveal(0, range(9))


def test_a_second_list_of_survivors_is_refused(ten: Federation) -> None:
    mask_all(ten)
    first = ten.reveal(0, range(9))
    assert ten.reveal(0, range(9)) == first  # a repeated request
    with pytest.raises(ClientError, match="other survivors"):
        ten.reveal(0, range(8))


def test_no_client_reveals_both_shares_of_a_peer(ten: Federation) -> None:
    mask_all(ten)
    shares = ten.reveal(0, range(9))
    latest = secrets.read(ten.data[0]).latest
    assert latest
    parts = [shares[start : start + SEED_BYTES] for start in range(0, len(shares), SEED_BYTES)]
    for client, held in latest.held.items():
        key, mask = held[:SEED_BYTES], held[SEED_BYTES:]
        assert (parts[client] == mask, parts[client] == key) == (client < 9, client == 9)


@pytest.mark.parametrize("survivors", [[0, 0, *range(1, 9)], [*range(9), 11], [*range(1, 10)]])
def test_repeated_unknown_and_missing_survivors_are_refused(
    ten: Federation, survivors: list[int]
) -> None:
    mask_all(ten)
    with pytest.raises(
        (ClientError, ValueError), match=r"names a client twice|no members|not among"
    ):
        ten.reveal(0, survivors)


def test_nothing_is_revealed_before_masking_or_for_another_round(ten: Federation) -> None:
    ten.prepare()
    with pytest.raises(ClientError, match="masked nothing in round 1"):
        ten.reveal(0, range(10))
    mask_all(ten)
    with pytest.raises(ClientError, match="masked nothing in round 2"):
        ten.reveal(0, range(10), 2)


def test_a_wrong_share_is_attributed_to_its_holder(ten: Federation) -> None:
    prepared, plain = ten.prepare(), updates(ten.clients)
    masked = {c: ten.mask(prepared, c, plain[c]) for c in ten.clients}
    shares = {c: ten.reveal(c, masked) for c in ten.clients[:8]}
    shares[2] = bytes([shares[2][0] ^ 1]) + shares[2][1:]
    with pytest.raises(ValueError, match="its share of client 0 is not the one that client made"):
        ten.total(prepared, masked, shares)
