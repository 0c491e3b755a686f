"""Whole private runs: what leaves a client, privacy statements, budgets and refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed, content_of
from outcomes import final_vector, result_of

from clients.data.client_data import simulated_ledger
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import RECORD, TrainReply

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
SEEDED = ["privacy.reproducible=true", "engine.dtype=float64"]
EXAMPLE = ["privacy.unit=example", "privacy.noise_multiplier=1", *SEEDED]
CLIENT = ["privacy.unit=client", "privacy.noise_multiplier=1", *SEEDED]
HIDDEN = [*CLIENT, "privacy.client_noise=clients"]
BOTH = ["privacy.unit=both", "privacy.noise_multiplier=1", *SEEDED]


@pytest.mark.parametrize("unit", ["example", "client", "both", "hidden"])
def test_every_result_states_its_mechanism_for_each_unit(
    quick: Quick, federate: Federate, unit: str
) -> None:
    settings = {"example": EXAMPLE, "client": CLIENT, "both": BOTH, "hidden": HIDDEN}[unit]
    result = result_of(federate(quick(*settings)))
    said = result["privacy"]
    assert (said["example"] is None) == (unit in ("client", "hidden"))
    assert (said["client"] is None) == (unit == "example")
    assert result["epsilon"] == (said["example"] or said["client"])["epsilon"] > 0
    for each in filter(None, said.values()):
        assert each["noise_multiplier"] == each["clip"] == 1
        assert not each["releasable"]  # the noise is seeded
        assert 0 < each["delta"] < 1 / 3
    if said["example"]:
        # 20 examples, 8 in a batch, 2 whole batches an epoch, 2 rounds.
        assert (said["example"]["sampling_rate"], said["example"]["steps"]) == (0.4, 4)
    if said["client"]:
        assert said["client"]["steps"] == 2
        assert said["client"]["sampling"] == ("none" if unit == "hidden" else "Poisson")


@pytest.mark.parametrize("settings", [EXAMPLE, CLIENT, HIDDEN])
def test_no_training_loss_leaves_a_client(
    quick: Quick, federate: Federate, settings: list[str]
) -> None:
    seen: list[Message] = []

    def watch(reply: Message) -> Message:
        seen.append(reply)
        return reply

    folder = federate(quick(*settings), watch)
    assert len(seen) == 6
    for reply in seen:
        assert [*reply.content] == [RECORD]
        assert content_of(reply, TrainReply).loss is None
    assert [line["loss"] for line in folder.rounds()] == [None, None]


def test_reproducible_noise_repeats_and_secure_noise_does_not(
    quick: Quick, federate: Federate
) -> None:
    seeded = quick(*EXAMPLE)
    one, other = (final_vector(federate(seeded, out=name)) for name in ("one", "other"))
    assert one.tobytes() == other.tobytes()
    secure = quick("privacy.unit=example", "privacy.noise_multiplier=1", "engine.dtype=float64")
    one, other = (final_vector(federate(secure, out=f"secure-{name}")) for name in ("one", "other"))
    assert not np.allclose(one, other)


def test_a_result_of_secure_noise_may_be_released(quick: Quick, federate: Federate) -> None:
    folder = federate(quick("privacy.unit=both", "privacy.epsilon=6"))
    said = result_of(folder)["privacy"]
    for each in said.values():
        assert each["releasable"]
        assert 5.5 < each["epsilon"] <= 6  # calibrated for exactly this run
    assert said["example"]["accountant"] == "prv"
    epsilons = [line["epsilon"] for line in folder.rounds()]
    assert epsilons == sorted(epsilons)


def test_a_run_without_noise_has_no_epsilon(quick: Quick, federate: Federate) -> None:
    result = result_of(
        federate(quick("privacy.unit=example", "privacy.noise_multiplier=0", "privacy.clip=0"))
    )
    assert result["epsilon"] is None
    assert result["privacy"]["example"]["releasable"] is False


def test_an_interrupted_private_run_ends_with_the_same_bits_and_epsilon(
    quick: Quick, federate: Federate
) -> None:
    """The repeated round draws the same seeded noise, so it costs nothing a second time."""

    def interrupt(reply: Message) -> Message:
        raise KeyboardInterrupt

    adaptive = ["privacy.client_quantile=0.5", "privacy.client_noise_multiplier=0.2"]
    experiment = quick(*BOTH, "federation.rounds=3", *adaptive)
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, client=1, rounds=[2], out="again")
    again = federate(experiment, resume=True, out="again")
    assert final_vector(again).tobytes() == final_vector(whole).tobytes()
    assert result_of(again)["privacy"] == result_of(whole)["privacy"]


def test_an_interrupted_secure_run_is_charged_for_repeated_rounds(
    quick: Quick, federate: Federate
) -> None:
    def interrupt(reply: Message) -> Message:
        raise KeyboardInterrupt

    experiment = quick("privacy.unit=example", "privacy.noise_multiplier=1")
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, client=1, rounds=[2], out="again")
    again = federate(experiment, resume=True, out="again")
    steps = [result_of(f)["privacy"]["example"]["steps"] for f in (whole, again)]
    assert steps == [4, 6]
    assert result_of(again)["epsilon"] > result_of(whole)["epsilon"]


def test_a_second_experiment_on_the_same_data_composes(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    kept = f"privacy.ledger={tmp_path / 'ledgers'}"
    first = quick("privacy.unit=example", "privacy.noise_multiplier=1", kept)
    second = quick("privacy.unit=example", "privacy.noise_multiplier=2", kept, "method.d=8")
    alone = result_of(federate(first, out="first"))
    both = result_of(federate(second, out="second"))
    found = read_ledger(simulated_ledger(tmp_path / "ledgers", 1)).mechanisms("example")
    assert [each.noise_multiplier for each in found] == [1, 1, 2, 2]
    assert both["epsilon"] == spent(found, both["privacy"]["example"]["delta"]).epsilon
    assert both["epsilon"] > alone["epsilon"]


def test_a_ledger_of_other_data_is_refused(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    kept = f"privacy.ledger={tmp_path / 'ledgers'}"
    settings = ["privacy.unit=example", "privacy.noise_multiplier=1", kept]
    federate(quick(*settings), out="first")
    with pytest.raises(RunFailed, match="other training data"):
        federate(quick(*settings, "seed=1"), out="second")


def test_a_client_without_budget_refuses_and_is_not_asked_again(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """Client 1 has spent half of what the run needs before it begins."""
    kept = f"privacy.ledger={tmp_path / 'ledgers'}"
    plan = ["privacy.unit=example", "privacy.epsilon=5", "federation.rounds=4", kept]
    federate(quick(*plan, "privacy.participations=4", "federation.rounds=2"), out="before")
    for client in (0, 2):
        simulated_ledger(tmp_path / "ledgers", client).unlink()
    folder = federate(quick(*plan), out="run")
    rounds = folder.rounds()
    assert [line["clients"] for line in rounds] == [3, 3, 2, 2]
    [refused] = rounds[2]["failed"]
    assert refused["client"] == 1
    assert "above the budget of 5" in refused["reason"]
    assert rounds[3]["failed"] == []
    asked = [(line["round"], line["client"]) for line in folder.sent() if line["kind"] == "train"]
    assert (3, 1) in asked
    assert (4, 1) not in asked
    assert result_of(folder)["epsilon"] <= 5


def test_spent_budgets_do_not_excuse_other_failures(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """Client 1 lacks the budget; a round in which the two others fail is a failed round."""

    def broken(reply: Message) -> Message:
        if reply.has_error():
            return reply
        raise OSError("broken")

    kept = f"privacy.ledger={tmp_path / 'ledgers'}"
    plan = ["privacy.unit=example", "privacy.epsilon=5", "federation.rounds=4", kept]
    federate(quick(*plan, "privacy.participations=4", "federation.rounds=2"), out="before")
    for client in (0, 2):
        simulated_ledger(tmp_path / "ledgers", client).unlink()
    with pytest.raises(RunFailed, match="round 3: 0 of 3 clients succeeded"):
        federate(quick(*plan), broken, rounds=[3], out="run")


def test_a_run_ends_when_no_client_has_budget_left(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    kept = f"privacy.ledger={tmp_path / 'ledgers'}"
    settings = ["privacy.unit=example", "privacy.epsilon=5", "privacy.participations=2", kept]
    folder = federate(quick(*settings, "federation.rounds=4"), out="run")
    assert [line["clients"] for line in folder.rounds()] == [3, 3]
    assert result_of(folder)["rounds"] == 2
    with pytest.raises(RunFailed, match="no client has the privacy budget"):
        federate(quick(*settings, "federation.rounds=3"), out="next")


def test_a_run_that_ends_early_is_evaluated(quick: Quick, federate: Federate) -> None:
    settings = ["privacy.unit=example", "privacy.epsilon=5", "privacy.participations=2"]
    folder = federate(quick(*settings, "federation.rounds=4", "output.eval_every=100"))
    assert folder.rounds()[-1]["score"] is None
    assert 0 <= result_of(folder)["score"] <= 1


def test_the_bytes_of_an_evaluation_after_an_early_end_are_counted(
    quick: Quick, federate: Federate
) -> None:
    settings = ["privacy.unit=example", "privacy.epsilon=5", "privacy.participations=2"]
    settings += ["federation.evaluation=clients", "federation.rounds=4", "output.eval_every=100"]
    for resume in (False, True):
        folder = federate(quick(*settings), resume=resume)
        lines = [line for line in folder.sent() if line["kind"] == "evaluate"]
        assert [(line["round"], line["client"]) for line in lines] == [(3, 0), (3, 1), (3, 2)]
        counted = result_of(folder)["bytes"]["evaluate"]["up"]["message"]
        assert counted == sum(line["up"]["message"] for line in lines) > 0


def test_a_round_that_all_sampled_clients_refuse_keeps_the_vector(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """Others have budget left, so the run goes on; what was sent is counted."""
    settings = ["privacy.unit=example", "privacy.epsilon=5", "privacy.participations=1"]
    folder = federate(quick(*settings, "federation.rounds=6", "federation.per_round=1"))
    rounds = folder.rounds()
    refused = [line for line in rounds if line["failed"]]
    assert refused, "nobody was drawn twice; another seed would do"
    for line in refused:
        before = next(each for each in rounds if each["round"] == line["round"] - 1)
        assert line["clients"] == 0
        assert line["score"] == before["score"]
        assert line["bytes"]["down"]["payload"] > 0


def test_a_client_whose_ledger_went_back_is_refused(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """A deleted ledger begins anew and says too little; the server remembers, also resumed."""

    def interrupt(reply: Message) -> Message:
        raise KeyboardInterrupt

    experiment = quick("privacy.unit=example", "privacy.noise_multiplier=1", "federation.rounds=4")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, client=2, rounds=[3])
    simulated_ledger(tmp_path / "run" / "privacy", 0).unlink()
    [line] = federate(experiment, resume=True).rounds()[2:3]
    [failed] = line["failed"]
    assert failed["client"] == 0
    assert "went back from 4 steps to 2" in failed["reason"]


def test_impossible_privacy_settings_create_no_folder(quick: Quick, tmp_path: Path) -> None:
    from simulations.simulation import prepare

    for settings in (
        [*EXAMPLE, "local.batch_size=50"],
        [*CLIENT, "federation.clients=1"],
        [*HIDDEN, "federation.clients=1"],
        [*CLIENT, "privacy.client_quantile=0.5"],
    ):
        with pytest.raises(UserError):
            prepare(quick(*settings), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_damaged_ledger_stops_its_client_only(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    settings = ["privacy.unit=example", "privacy.noise_multiplier=1"]
    kept = f"privacy.ledger={tmp_path / 'ledgers'}"
    federate(quick(*settings, kept), out="before")
    path = simulated_ledger(tmp_path / "ledgers", 2)
    path.write_bytes(path.read_bytes()[:5000])
    folder = federate(quick(*settings, kept, "method.d=8"), out="run")
    for line in folder.rounds():
        [failed] = line["failed"]
        assert failed["client"] == 2
        assert "LedgerDamaged" in failed["reason"]


def test_a_cohort_spends_and_trains_like_single_clients(quick: Quick, tmp_path: Path) -> None:
    from simulations.simulation import prepare, simulate

    found = []
    for cohort in (1, 3):
        experiment = quick(*EXAMPLE, f"engine.cohort={cohort}")
        folder, _ = prepare(experiment, tmp_path / f"cohort-{cohort}")
        simulate(folder, experiment)
        found.append(folder)
    np.testing.assert_allclose(*(final_vector(each) for each in found), rtol=0, atol=1e-9)
    assert result_of(found[0])["privacy"] == result_of(found[1])["privacy"]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack("<4d", 1, 1, 0.2, 1e15), "a value of the privacy statement is out of range"),
        (struct.pack("<4d", 1, 1, 1e-9, 5), "the privacy statement is of another mechanism"),
        (b"epsilon is 0", "the privacy statement does not hold"),
        ("epsilon is 0", "example is str, expected bytes"),
    ],
)
def test_a_reply_with_an_invalid_privacy_statement_is_refused(
    quick: Quick, federate: Federate, sent: bytes | str, reason: str
) -> None:
    folder = federate(quick(*EXAMPLE), lambda reply: changed(reply, e=sent), client=0, rounds=[1])
    [failed] = folder.rounds()[0]["failed"]
    assert failed["client"] == 0
    assert reason in failed["reason"]


def test_no_client_can_write_into_the_statement_of_a_run(quick: Quick, federate: Federate) -> None:
    """It claims other runs without noise; the budget of this run refuses that."""

    def lie(reply: Message) -> Message:
        data = content_of(reply, TrainReply).example
        return changed(reply, e=data[:8] + struct.pack("<3d", 1e-2, 1.0, 1e9) + data[8:])

    experiment = quick("privacy.unit=example", "privacy.epsilon=5")
    honest = result_of(federate(experiment, out="honest"))
    folder = federate(experiment, lie, client=0, out="spoiled")
    for line in folder.rounds():
        assert "exceeds the budget of epsilon 5" in line["failed"][0]["reason"]
    assert result_of(folder)["privacy"] == honest["privacy"]


def test_a_round_without_sampled_clients_still_adds_noise(quick: Quick, federate: Federate) -> None:
    """Whoever is sampled must not show: an empty sample is answered with noise, too."""
    experiment = quick(
        *CLIENT, "federation.clients=6", "federation.per_round=1", "federation.rounds=6"
    )
    rounds = federate(experiment).rounds()
    counts = [line["clients"] for line in rounds]
    assert 0 in counts, "no round of nobody among these; another seed would have one"
    assert len(rounds) == 6


def test_rgp_trains_with_the_epsilon_of_dpsgd_and_says_so(federate: Federate) -> None:
    """The task vector holds all weights, of which the embeddings stay as they were."""
    sizes = ["task.train_limit=60", "task.eval_limit=20", "federation.rounds=2"]
    quick = ["backbone=tiny", "engine.threads=1", "federation.clients=2", "output.plots=false"]
    whole = [*quick, *sizes, *EXAMPLE, "method.name=full", "privacy.physical_batch=4"]
    plain = result_of(federate(Experiment.load("", whole), out="plain"))
    experiment = Experiment.load("", [*whole, "privacy.rank=2"])
    folder = federate(experiment, out="rgp")
    result, vector = result_of(folder), final_vector(folder)
    assert result["vector_size"] == plain["vector_size"]
    said, other = (each["privacy"]["example"] for each in (result, plain))
    assert said["mechanism"].endswith("; RGP (Yu et al. 2021): gradients of carriers of rank 2")
    assert {**said, "mechanism": ""} == {**other, "mechanism": ""}
    assert 0.1 < np.mean(vector == 0) < 0.9  # embeddings
    assert final_vector(federate(experiment, out="again")).tobytes() == vector.tobytes()
