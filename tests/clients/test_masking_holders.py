"""Attacks where few clients hold shares; each is named in the page on secure aggregation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sums import Federation

from clients.errors import ClientError
from clients.secure import secrets
from fedpeft.experiment.config import Experiment
from fedpeft.secure.keys import SEED_BYTES
from fedpeft.secure.parts import digest_of
from server.secure.unmasking import Prepared, checked_shares

CLIENTS = 140
MASKED = 5  # clients from 0 on that have masked an update
Ready = tuple[Federation, dict[int, Prepared]]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """A crowd of which all have prepared round 1, and some have masked an update."""
    settings = {
        "backbone": "tiny",
        "task.train_limit": 10 * CLIENTS,
        "task.eval_limit": 40,
        "method.d": 16,
        "federation.clients": CLIENTS,
        "federation.rounds": 2,
        "federation.secure": "true",
        "output.plots": "false",
    }
    experiment = Experiment.load("", [f"{key}={value}" for key, value in settings.items()])
    crowd = Federation(experiment, tmp_path_factory.mktemp("crowd"))
    prepared = crowd.prepare()
    for client in range(MASKED):
        crowd.mask(prepared, client, np.full(8, client, np.uint64))
    return crowd, prepared


def owners(prepared: dict[int, Prepared], holder: int) -> list[int]:
    """The other clients whose shares one holds."""
    return [c for c, made in prepared.items() if holder in made.digests and c != holder]


def test_a_holder_refuses_if_most_of_its_owners_are_called_lost(ready: Ready) -> None:
    """The server calls lost those whose keys it wants, as many as a threshold allows."""
    crowd, prepared = ready
    rules = crowd.rules()
    # Every run draws other holders, of 43 owners on average and sometimes of too few. Client 0 is
    # for the next test: a client reveals once.
    holder = max(range(1, MASKED), key=lambda client: len(owners(prepared, client)))
    held = owners(prepared, holder)
    lost = CLIENTS - rules.survivors
    assert rules.lost < lost < len(held)
    for called in (held[:lost], held[: rules.lost + 1]):
        survivors = [client for client in crowd.clients if client not in called]
        with pytest.raises(ClientError, match=f"are called lost; expected at most {rules.lost}"):
            crowd.reveal(holder, survivors)
    survivors = [client for client in crowd.clients if client not in held[: rules.lost]]
    assert len(crowd.reveal(holder, survivors)) == SEED_BYTES * (len(held) + 1)


def test_a_holder_reveals_only_shares_of_those_that_chose_it(ready: Ready) -> None:
    crowd, prepared = ready
    shares = checked_shares(crowd.reveal(0, range(CLIENTS)), 0, prepared, prepared)
    assert sorted(shares) == sorted([0, *owners(prepared, 0)])
    assert len(shares) < CLIENTS * 0.8


def test_holders_derive_or_receive_what_the_owner_announced(ready: Ready) -> None:
    """Shares that are derived from keys, and those that are sent, have the owner's digests."""
    crowd, prepared = ready
    latest = secrets.read(crowd.data[2]).latest
    assert latest
    kinds = set()
    for owner, held in latest.held.items():
        made = prepared[owner]
        found = [digest_of(part, made.points[2]) for part in (held[:SEED_BYTES], held[SEED_BYTES:])]
        assert tuple(found) == made.digests[2]
        kinds.add(2 in made.sealed)
    assert kinds == {True, False}


def test_other_holders_than_an_owner_chose_are_refused(ready: Ready) -> None:
    crowd, prepared = ready
    made = prepared[9].member
    forged = replace(made, holder_seed=bytes(SEED_BYTES))
    listed = {**prepared, 9: replace(prepared[9], member=forged)}
    with pytest.raises(ClientError, match="1 keys of members are not signed for this round"):
        crowd.masking(listed, 5)


def test_a_changed_sealed_share_is_no_share_of_the_owner(ready: Ready) -> None:
    """The server changes what an owner sent: the holder reveals that share with the change."""
    crowd, prepared = ready
    holder, owner = next((h, c) for c, made in prepared.items() for h in made.sealed if h >= MASKED)
    text = prepared[owner].sealed[holder]
    changed = prepared[owner].sealed | {holder: bytes([text[0] ^ 1]) + text[1:]}
    listed = {**prepared, owner: replace(prepared[owner], sealed=changed)}
    held = crowd.masking(listed, holder)._secrets.held[owner]
    expected = crowd.masking(prepared, holder)._secrets.held[owner]
    assert held == bytes([expected[0] ^ 1]) + expected[1:]
