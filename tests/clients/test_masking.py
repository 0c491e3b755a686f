"""Sums under masks: they are exact, and a server that lies learns no single update.

Each test of an attack is named in ``docs/explanation/secure-aggregation.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sums import BITS, WORK, Federation

from clients import secrets
from clients.assignment import Masked
from clients.errors import ClientError
from clients.masking import Masking, Work
from clients.preparation import prepare
from fedpeft.experiment.config import Experiment
from fedpeft.secure import keys, ring
from fedpeft.secure.keys import SEED_BYTES, Peer
from fedpeft.secure.masks import masks, pair_seed, self_seed, unpacked
from fedpeft.secure.parts import Member
from fedpeft.wire.messages import Request

Quick = Callable[..., Experiment]
SIZE = 40


@pytest.fixture
def ten(quick: Quick, tmp_path: Path) -> Federation:
    """Ten clients, one of which may collude: eight have to stay."""
    return Federation(quick("federation.secure=true", "federation.clients=10"), tmp_path)


def updates(clients: list[int], number: int = 1) -> dict[int, np.ndarray]:
    draw = np.random.default_rng(number)
    return {client: draw.integers(0, 16, SIZE).astype(np.uint64) for client in clients}


def play(
    federation: Federation, lost_before: list[int], lost_after: list[int], number: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The sum of a round in which some clients are lost, and what it should be."""
    prepared = federation.prepare(number)
    plain = updates(federation.clients, number)
    masked = {
        client: federation.mask(prepared, client, plain[client], number)
        for client in federation.clients
        if client not in lost_before
    }
    holders = [client for client in masked if client not in lost_after]
    shares = {client: federation.reveal(client, masked, number) for client in holders}
    levels, facts = federation.total(prepared, masked, shares, number)
    assert facts.tolist() == [len(masked), 2 * len(masked)]
    return levels, sum(plain[client] for client in masked)


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([3], []), ([], [0, 9]), ([4], [7]), ([0, 9], [])]
)
def test_the_sum_is_exact_with_clients_lost_before_and_after_masking(
    ten: Federation, before: list[int], after: list[int]
) -> None:
    found, expected = play(ten, before, after)
    np.testing.assert_array_equal(found, expected)


def test_few_holders_of_shares_and_a_fifth_of_the_clients_lost(
    quick: Quick, tmp_path: Path
) -> None:
    settings = ["federation.secure=true", "federation.clients=140", "secure.colluders=7"]
    crowd = Federation(quick(*settings, "task.train_limit=1400"), tmp_path)
    assert crowd.rules().holders < 80
    found, expected = play(crowd, [*range(14)], [*range(60, 74)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_three_hundred_clients_of_which_sixty_are_lost(quick: Quick, tmp_path: Path) -> None:
    settings = ["federation.secure=true", "federation.clients=300", "secure.colluders=15"]
    crowd = Federation(quick(*settings, "task.train_limit=3000"), tmp_path)
    assert crowd.rules().holders < 120
    found, expected = play(crowd, [*range(0, 300, 10)], [*range(5, 300, 10)])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_hundred_clients_of_which_twenty_are_lost(quick: Quick, tmp_path: Path) -> None:
    settings = ["federation.secure=true", "federation.clients=100", "secure.colluders=10"]
    hundred = Federation(quick(*settings), tmp_path)
    found, expected = play(hundred, [*range(5, 15)], [*range(50, 60)])
    np.testing.assert_array_equal(found, expected)


def test_rounds_follow_each_other_with_new_keys(ten: Federation) -> None:
    before = None
    for number in (1, 2):
        found, expected = play(ten, [number], [], number)
        np.testing.assert_array_equal(found, expected)
        latest = secrets.read(ten.data[0]).latest
        assert latest and latest.key_seed != before
        before = latest.key_seed


def test_masked_updates_are_uniform(ten: Federation) -> None:
    """Chi squared of the masked zeros of all clients, over 64 bins of 12 bits."""
    prepared = ten.prepare()
    zeros = np.zeros(6400, np.uint64)
    for client in ten.clients:
        levels, _ = ten.mask(prepared, client, zeros)
        counts = np.bincount(levels.astype(int) * 64 >> BITS, minlength=64)
        assert ((counts - 100.0) ** 2 / 100.0).sum() < 130  # 63 degrees: p = 1e-6


def test_each_kind_of_mask_alone_makes_an_update_uniform(ten: Federation) -> None:
    prepared = ten.prepare()
    masking = ten.masking(prepared, 3)
    zeros, facts = np.zeros(6400, np.uint64), np.zeros(2, np.uint64)
    whole, _ = unpacked(masking.mask(zeros, facts, BITS), 6400, BITS)
    latest = secrets.read(ten.data[3]).latest
    assert latest
    own, _ = masks(6400, BITS, [self_seed(latest.mask_seed)], [])
    pairs = ring.reduced(whole - own, BITS)
    for part in (own, pairs):
        counts = np.bincount(part.astype(int) * 64 >> BITS, minlength=64)
        assert ((counts - 100.0) ** 2 / 100.0).sum() < 130


def test_masked_updates_of_two_clients_are_not_alike(ten: Federation) -> None:
    prepared, zeros = ten.prepare(), np.zeros(SIZE, np.uint64)
    rows = [ten.mask(prepared, client, zeros)[0].tobytes() for client in ten.clients]
    assert len({*rows}) == 10


def ready(ten: Federation) -> dict[int, np.ndarray]:
    prepared, plain = ten.prepare(), updates(ten.clients)
    for client in ten.clients:
        ten.mask(prepared, client, plain[client])
    return plain


def test_split_lists_of_survivors_below_the_threshold_are_refused(ten: Federation) -> None:
    """The attack of reference/secure_aggregation.md: half of the clients survive for one half."""
    ready(ten)
    for survivors in ([0, 1, 2, 3, 4], [*range(7)]):
        with pytest.raises(ClientError, match="fewer than the threshold of 8"):
            ten.reveal(0, survivors)


def test_survivors_below_the_number_that_noise_is_calibrated_for_are_refused(
    quick: Quick, tmp_path: Path
) -> None:
    noise = ["privacy.unit=client", "privacy.client_noise=secure", "privacy.epsilon=4"]
    settings = ["federation.secure=true", "federation.clients=10", "secure.threshold=9", *noise]
    ten = Federation(quick(*settings), tmp_path)
    ready(ten)
    with pytest.raises(ClientError, match="8 survivors are fewer than the threshold of 9"):
        ten.reveal(0, range(8))
    ten.reveal(0, range(9))


def test_the_noise_of_a_round_is_new_for_each_preparation(ten: Federation) -> None:
    """And follows from no secret of which the peers hold shares."""
    seeds = set()
    for number in (1, 2):
        ten.prepare(number)
        latest = secrets.read(ten.data[0]).latest
        assert latest
        shared = [keys.derived(seed, "noise") for seed in (latest.key_seed, latest.mask_seed)]
        assert latest.noise_seed not in shared
        seeds.add(latest.noise_seed)
    assert len(seeds) == 2


@pytest.mark.parametrize(("norm", "weight"), [(2.0, 1.0), (1.0, 5.0)])
def test_noise_is_for_the_clip_and_weight_of_the_experiment(
    quick: Quick, tmp_path: Path, norm: float, weight: float
) -> None:
    noise = ["privacy.unit=client", "privacy.client_noise=secure", "privacy.epsilon=4"]
    ten = Federation(quick("federation.secure=true", "federation.clients=10", *noise), tmp_path)
    request = Request(round=1, clip_norm=norm, max_weight=weight)
    with pytest.raises(ClientError, match=r"expected privacy.client_clip = 1 and 1"):
        Masked.read(ten.data[0], request)


def test_a_second_list_of_survivors_is_refused(ten: Federation) -> None:
    ready(ten)
    first = ten.reveal(0, range(9))
    assert ten.reveal(0, range(9)) == first  # a repeated request
    with pytest.raises(ClientError, match="other survivors"):
        ten.reveal(0, range(8))


def test_no_client_reveals_both_shares_of_a_peer(ten: Federation) -> None:
    ready(ten)
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
    ready(ten)
    with pytest.raises(
        (ClientError, ValueError), match=r"names a client twice|no members|not among"
    ):
        ten.reveal(0, survivors)


def test_nothing_is_revealed_before_masking_or_for_another_round(ten: Federation) -> None:
    ten.prepare()
    with pytest.raises(ClientError, match="masked nothing in round 1"):
        ten.reveal(0, range(10))
    ready(ten)
    with pytest.raises(ClientError, match="masked nothing in round 2"):
        ten.reveal(0, range(10), 2)


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


def test_a_colluder_with_anothers_key_cancels_no_mask(ten: Federation) -> None:
    """Client 0 announces the key of client 9 to client 4, between whose numbers it lies."""
    prepared = ten.prepare()
    private, key = secrets.read(ten.data[0]).private, prepared[9].member.key
    made = Member.signed(private, ten.context(), 0, key, prepared[0].member.holder_seed)
    with pytest.raises(ClientError, match="one key of the round stands for two members"):
        ten.masking({**prepared, 0: replace(prepared[0], member=made)}, 4)
    latest = secrets.read(ten.data[4]).latest  # nor would its masks cancel
    assert latest
    own = keys.private_key(latest.private)
    assert pair_seed(own, key, ten.context(), 4, 0) != pair_seed(own, key, ten.context(), 4, 9)


def test_a_short_list_of_clients_does_not_lower_the_threshold(ten: Federation) -> None:
    with pytest.raises(ClientError, match="3 clients in the round; expected 8 to 10"):
        ten.prepare(1, [0, 1, 2])
    nine = ten.prepare(1, range(9))
    few = {client: nine[client] for client in range(7)}
    with pytest.raises(ClientError, match="7 members are fewer than the threshold of 8"):
        ten.masking(few, 0)


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


def test_too_few_members_are_refused(ten: Federation) -> None:
    prepared = ten.prepare()
    few = {client: prepared[client] for client in range(7)}
    with pytest.raises(ClientError, match="7 members are fewer than the threshold of 8"):
        ten.mask(few, 0, updates([0])[0])


@pytest.mark.parametrize("part", ["key", "holder_seed", "signature"])
def test_exchanged_keys_and_holders_are_refused(ten: Federation, part: str) -> None:
    """The server puts a key of its own, or holders that suit it, in the place of a client's."""
    prepared = ten.prepare()
    made = prepared[3].member
    other = Member(4, keys.public_key(bytes(range(32))), bytes(16), prepared[4].member.signature)
    prepared[3] = replace(prepared[3], member=replace(made, **{part: getattr(other, part)}))
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        ten.masking(prepared, 0)


def test_a_round_for_which_clients_were_told_other_peers_is_refused(
    quick: Quick, tmp_path: Path
) -> None:
    """A small list for one client would make its secrets cheap to reveal."""
    ten = Federation(quick("federation.secure=true", "federation.clients=10"), tmp_path)
    few = [*range(8)]
    made = ten.read(3, prepare(ten.data[3], 1, ten.listed(few)), 1, few)
    prepared = {3: made}
    for client in ten.clients:
        if client != 3:
            reply = prepare(ten.data[client], 1, ten.listed())
            prepared[client] = ten.read(client, reply, 1, ten.clients)
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        ten.masking(dict(sorted(prepared.items())), 0)


def test_shares_of_another_round_are_refused(ten: Federation) -> None:
    old, new = ten.prepare(1), ten.prepare(2)
    new[5] = old[5]
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        ten.masking(new, 0, 2)
    with pytest.raises(ClientError, match="round 1 was not prepared"):
        ten.masking(old, 0)


def test_a_wrong_number_of_sealed_shares_is_refused(ten: Federation) -> None:
    prepared = ten.prepare()
    listed, sealed = ten.members(prepared), ten.sealed(prepared, 0)
    for wrong in (sealed + bytes(1), sealed + bytes(32)):
        with pytest.raises(ValueError, match="a list has"):
            Masking(ten.data[0], 1, listed, wrong, WORK)


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


def test_a_round_outside_of_the_run_is_not_prepared(ten: Federation) -> None:
    for number in (0, -1, 3):
        with pytest.raises(ClientError, match=f"round {number}: expected 1 to 2"):
            ten.prepare(number)


def test_strangers_and_unsigned_keys_are_refused(ten: Federation) -> None:
    peers = dict(ten.peers)
    ten.peers[4] = ten.stranger(4, seed=99)
    with pytest.raises(ClientError, match="1 of 10 clients of the round are not in this node's"):
        ten.prepare()
    unsigned = replace(Peer.from_bytes(peers[4]), signature=bytes(96))
    ten.peers[4] = unsigned.to_bytes()
    with pytest.raises(ClientError, match="or their keys are not signed for this run"):
        ten.prepare()
    ten.peers[4] = replace(Peer.from_bytes(peers[4]), key=bytes(range(32))).to_bytes()
    with pytest.raises(ClientError, match="1 of 10"):
        ten.prepare()


def test_keys_signed_for_another_run_are_refused(
    ten: Federation, quick: Quick, tmp_path: Path
) -> None:
    other = quick("federation.secure=true", "federation.clients=10", "local.lr=0.5")
    ten.peers[4] = Federation(other, tmp_path / "other").peers[4]
    with pytest.raises(ClientError, match="1 of 10"):
        ten.prepare()


@pytest.mark.parametrize("clients", [[0, 1, 1, 2, 3], [3, 2, 1, 0], [1, 2, 3, 4, 5]])
def test_repeated_clients_and_lists_without_the_client_are_refused(
    ten: Federation, clients: list[int]
) -> None:
    with pytest.raises((ClientError, ValueError), match=r"twice|not among"):
        prepare(ten.data[0], 1, ten.listed(clients))


def test_one_registered_key_is_not_two_clients(ten: Federation) -> None:
    private = secrets.read(ten.data[4]).private
    made = keys.introduced(keys.simulated(0, 5), ten.data[0].context, 4, private)
    ten.peers[4] = made.to_bytes()
    with pytest.raises(ClientError, match="one key stands for two clients"):
        prepare(ten.data[0], 1, ten.listed())


def test_a_wrong_share_is_attributed_to_its_holder(ten: Federation) -> None:
    prepared, plain = ten.prepare(), updates(ten.clients)
    masked = {c: ten.mask(prepared, c, plain[c]) for c in ten.clients}
    shares = {c: ten.reveal(c, masked) for c in ten.clients[:8]}
    shares[2] = bytes([shares[2][0] ^ 1]) + shares[2][1:]
    with pytest.raises(ValueError, match="its share of client 0 is not the one that client made"):
        ten.total(prepared, masked, shares)


def test_files_of_secrets_are_private_and_say_if_they_are_damaged(ten: Federation) -> None:
    ten.prepare()
    [path, *_] = sorted((ten.folder / "kept" / "secure").iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("{")
    with pytest.raises(Exception, match="file of this client's secrets is damaged"):
        secrets.read(ten.data[0])
