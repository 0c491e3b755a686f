"""``fedpeft privacy calibrate --mechanism banded | blt``, and runs that are refused."""

from __future__ import annotations

import json

import pytest

RUN = ("--epsilon", 4, "--examples", 1000, "--batch", 50, "--steps", 100)


def calibrated(fedpeft, *arguments: object) -> dict:
    code, printed, errors = fedpeft("privacy", "calibrate", *RUN, *arguments, "--json")
    assert (code, errors) == (0, "")
    return json.loads(printed)


def test_the_noise_is_printed_beside_that_of_poisson(fedpeft) -> None:
    banded, blt = (calibrated(fedpeft, "--mechanism", kind) for kind in ("banded", "blt"))
    poisson = calibrated(fedpeft)
    assert banded["poisson"]["round"] == blt["poisson"]["round"] == poisson["noise_multiplier"]
    for each, ratio in ((banded, 0.880), (blt, 0.924)):
        assert (each["rounds"], each["separation"], each["participations"]) == (100, 20, 5)
        assert 3.9 < each["epsilon"] <= 4
        assert each["ratio"] == each["noise"]["sums"] / each["poisson"]["sums"]
        assert each["ratio"] == pytest.approx(ratio, abs=0.002)
    assert banded["noise_multiplier"] == blt["noise_multiplier"] == 0.8694
    assert (banded["vectors"], blt["vectors"] <= 4) == (19, True)


def test_noise_of_sums_is_printed_beside_that_of_a_trusted_server(fedpeft) -> None:
    usual = calibrated(fedpeft, "--mechanism", "skellam", "--colluders", 2)
    high = calibrated(fedpeft, "--mechanism", "skellam", "--colluders", 2, "--threshold", 50)
    assert (usual["honest"], high["honest"], high["threshold"]) == (26, 48, 50)
    assert usual["participations"] == 5 and usual["accountant"] == "rdp"
    assert 3.9 < usual["epsilon"] <= 4 and usual["noise_multiplier"] == high["noise_multiplier"]
    for each, ratio in ((usual, 1.386), (high, 1.020)):
        # The square root of clients over honest ones, and what Renyi divergences cost.
        rest = each["noise_multiplier"] / (each["noise"]["trusted"] * 50)
        assert 1.03 < rest < 1.12
        measured = each["noise"]["mean"] / each["noise"]["trusted"]
        assert measured / rest == pytest.approx(ratio, abs=0.001)
    code, printed, _ = fedpeft("privacy", "calibrate", *RUN, "--mechanism", "skellam")
    assert code == 0 and "no amplification by sampling" in printed
    assert "of 50 clients must stay; every sum has the noise of" in printed


def test_less_separation_needs_more_noise(fedpeft) -> None:
    near = calibrated(fedpeft, "--mechanism", "banded", "--separation", 5)
    far = calibrated(fedpeft, "--mechanism", "banded")
    assert (near["separation"], near["participations"]) == (5, 5)
    assert near["noise"]["sums"] > far["noise"]["sums"]


def test_the_text_output_explains_its_numbers(fedpeft) -> None:
    code, printed, errors = fedpeft("privacy", "calibrate", *RUN, "--mechanism", "banded")
    assert (code, errors) == (0, "")
    for words in (
        "noise multiplier  0.8694",
        "one Gaussian mechanism for 100 rounds",
        "50 of 1,000 clients a round; each at most 5 times, at least 20 rounds apart",
        "(Poisson DP-SGD: 0.798)",
        "so 0.88 times",
        "one of 1,000 clients",
    ):
        assert words in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanism", "blt", "--separation", 21], "1,050 clients, and --examples is 1,000"),
        (["--separation", 5], "--separation 5: is for --mechanism banded and blt"),
        (["--mechanism", "blt", "--separation", -1], "--separation"),
        (["--mechanism", "tree"], "--mechanism"),
        (["--mechanism", "skellam", "--separation", 5], "--separation 5: is for"),
        (["--mechanism", "skellam", "--threshold", 9], "secure.threshold = 9: expected"),
        (["--mechanism", "banded", "--steps", 20_001], "at most 20,000 rounds"),
    ],
)
def test_impossible_values_are_refused_in_one_line(fedpeft, arguments: list, words: str) -> None:
    code, printed, errors = fedpeft("privacy", "calibrate", *RUN, *arguments)
    assert (code, printed) == (2, "")
    assert words in errors and errors.count("\n") == 1


def test_a_run_whose_separation_cannot_hold_ends_with_one_line(fedpeft, tmp_path) -> None:
    settings = ["backbone=tiny", "method.d=16", "federation.clients=12", "federation.per_round=3"]
    settings += ["privacy.unit=client", "privacy.epsilon=8", "privacy.mechanism=banded"]
    arguments = [part for each in (*settings, "privacy.separation=5") for part in ("-s", each)]
    code, printed, errors = fedpeft("simulate", "--out", tmp_path / "run", *arguments)
    assert (code, printed) == (2, "")
    assert "need 15 clients, and federation.clients is 12" in errors
    assert errors.count("\n") == 1 and not (tmp_path / "run").exists()
