"""``wire.budget``: what it chooses on the shapes of real backbones, and what a run then sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.sizes import size_in_bytes
from fedpeft.methods import REGISTRY
from fedpeft.updates.budget import ORDER, chosen, message_bytes, within_budget
from simulations.api import settings_of, simulate


def decided(budget: str, *overrides: str) -> Experiment:
    return within_budget(Experiment.load("", [f"wire.budget={budget}", *overrides]))


@pytest.mark.parametrize("backbone", ["minilm", "roberta-base"])
@pytest.mark.parametrize("method", [name for name in REGISTRY if name != "full"])
def test_every_method_keeps_a_budget_or_names_its_smallest_message(
    method: str, backbone: str
) -> None:
    settings = [f"method.name={method}", f"backbone={backbone}"]
    settings += ["representation=mask"] if method == "jr_warp" else []
    for budget in ("300 B", "1 KB", "20 KB"):
        try:
            experiment = decided(budget, *settings)
        except UserError as error:
            least = int(str(error).rpartition("at least ")[2].removesuffix(" B"))
            assert least > size_in_bytes(budget)
            assert message_bytes(decided(f"{least} B", *settings)) == least
            with pytest.raises(UserError, match="smallest message"):
                decided(f"{least - 1} B", *settings)
        else:
            assert message_bytes(experiment) <= size_in_bytes(budget)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("8 KB", "wire.up = 'float32', method.d = 1024"),
        ("1200 B", "wire.up = 'eden4', method.d = 1024"),
        ("1 KB", "wire.up = 'eden3', method.d = 1024"),
        ("500 B", "wire.up = 'eden1', method.d = 1024"),
        ("400 B", "wire.up = 'eden1', method.d = 446"),
        ("300 B", "wire.up = 'eden0.5', method.d = 63"),
        ("250 B", "wire.up = 'eden0.05', method.d = 520"),
    ],
)
def test_slash_on_minilm_takes_bits_then_sizes_then_fewer_bits(budget: str, expected: str) -> None:
    assert chosen(decided(budget)) == expected


def test_a_reduced_size_is_the_largest_that_fits() -> None:
    experiment = decided("400 B")
    larger = experiment.method.model_copy(update={"d": experiment.method.d + 8})  # type: ignore[attr-defined]
    assert (
        message_bytes(experiment)
        <= 400
        < message_bytes(experiment.model_copy(update={"method": larger}))
    )


def test_a_size_that_the_user_has_set_is_kept() -> None:
    assert chosen(decided("400 B", "method.d=1024")) == "wire.up = 'eden0.5', method.d = 1024"


def test_several_sizes_are_reduced_one_after_the_other() -> None:
    both = decided("15 KB", "method.name=mam", "backbone=roberta-base")
    assert chosen(both) == "wire.up = 'eden1', method.length = 4, method.bottleneck = 1"
    kept = decided("35 KB", "method.name=mam", "backbone=roberta-base", "method.bottleneck=16")
    assert kept.method.bottleneck == 16  # type: ignore[attr-defined]


def test_numbers_that_stay_at_the_clients_take_no_bytes() -> None:
    personal = ["federation.personal=head", "federation.evaluation=clients"]
    assert message_bytes(decided("8 KB", *personal)) == message_bytes(decided("8 KB")) - 4 * 770


def test_a_private_reply_is_longer() -> None:
    private = ["privacy.unit=example", "privacy.noise_multiplier=1"]
    assert message_bytes(decided("8 KB", *private)) == message_bytes(decided("8 KB")) + 41 - 16


def test_the_choice_is_explicit_and_survives_writing() -> None:
    experiment = decided("400 B")
    again = Experiment.load(experiment.to_toml())
    assert (again.wire.budget, again.wire.up) == ("", "eden1")
    assert again == experiment and again.digest == experiment.digest
    assert within_budget(again) is again
    assert settings_of({"wire.budget": "400 B", "head.start": "random"}).wire == experiment.wire


def test_settings_that_do_not_depend_on_the_budget_stay() -> None:
    before, after = Experiment.load("", ["local.lr=0.01"]), decided("400 B", "local.lr=0.01")
    restored = {"method": before.method, "wire": before.wire}
    assert after.model_copy(update=restored) == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["wire.up=eden1"], "chooses wire.up, and wire.up = 'eden1' is set; remove one"),
        (["wire.up=float32"], "chooses wire.up, and wire.up = 'float32' is set"),
        (["method.name=full"], "method 'full' sends all weights"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        decided("1 KB", *overrides)


def test_the_order_never_adds_bytes_per_number() -> None:
    codecs = [codec for codec, _ in ORDER]
    sizes = [
        message_bytes(Experiment.load("", [f"wire.up={codec}", "method.name=bitfit"]))
        for codec in codecs
    ]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("unit", "budget"), [("none", 283), ("both", 335)])
def test_the_messages_of_a_run_keep_the_budget(unit: str, budget: int, tmp_path: Path) -> None:
    settings = {
        "backbone": "tiny",
        "method": {"name": "lora"},
        "task": {"train_limit": 60, "eval_limit": 20},
        "federation": {"clients": 2, "rounds": 2},
        "local": {"batch_size": 8},
        "engine": {"threads": 1},
        "output": {"plots": False},
        "wire": {"budget": f"{budget} B"},
    }
    private = ["privacy.unit=both", "privacy.epsilon=8", "privacy.client_noise=clients"]
    simulate(settings, overrides=private if unit == "both" else [], out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/bytes.jsonl").read_text().splitlines()]
    sent = [line["up"]["message"] for line in lines if line["kind"] == "train"]
    assert len(sent) == 4
    assert budget - 40 <= max(sent) <= budget  # ids of a simulation are small numbers
