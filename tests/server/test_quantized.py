"""Whole runs with EDEN up and down: exact bytes, decoded norms, hostile codes, the same bits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed
from safetensors.numpy import load_file

from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.training import When, train_cohort
from fedpeft.transfer import decode_down, decode_up, encode_down, encode_up, size_up
from fedpeft.wire.codecs import encoded_size
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
ReadLines = Callable[[Path], list[dict[str, Any]]]
EDEN = ["wire.up=eden1", "wire.down=eden8"]
SIZE, HEAD = 82, 66
UP, DOWN = 4 + 11, 4 + 82


def scaled(factor: float) -> Callable[[Message], Message]:
    """Return a spoiler that multiplies the scale of a code."""

    def spoil(reply: Message) -> Message:
        data = reply.content["m"]["v"]
        assert isinstance(data, bytes)
        scale = np.frombuffer(data, "<f4", 1)[0] * np.float32(factor)
        return changed(reply, v=scale.astype("<f4").tobytes() + data[4:])

    return spoil


def vector_of(folder: RunFolder) -> np.ndarray:
    return load_file(folder.path / "vector.safetensors")["vector"]


@pytest.mark.parametrize(
    "privacy",
    [[], ["privacy.unit=both", "privacy.noise_multiplier=1", "privacy.reproducible=true"]],
    ids=["plain", "private"],
)
def test_payloads_are_those_of_the_codecs(
    quick: Quick, federate: Federate, read_lines: ReadLines, privacy: list[str]
) -> None:
    folder = federate(quick(*EDEN, "federation.evaluation=clients", *privacy))
    for line in read_lines(folder.path / "bytes.jsonl"):
        down = line["down"]["payload"]
        assert down == (0 if line["kind"] == "handshake" else DOWN)
        if line["kind"] == "train":
            assert line["up"]["payload"] == UP
    result = json.loads((folder.path / "result.json").read_text())
    share = result["bytes"]["per_client_round_up"]
    assert share["payload"] == UP == share["head"] + share["method"]
    assert share["head"] == round(UP * HEAD / SIZE)
    assert result["score"] is not None


def test_only_shared_parameters_are_coded(quick: Quick, federate: Federate) -> None:
    folder = federate(quick(*EDEN, "federation.personal=head", "federation.evaluation=clients"))
    result = json.loads((folder.path / "result.json").read_text())
    assert result["bytes"]["per_client_round_up"]["payload"] == 4 + 2


@pytest.mark.parametrize(
    ("up", "head", "payload"),
    [
        ("eden4", "eden1", 4 + 8 + 4 + 9),
        ("float32", "eden8", 64 + 4 + 66),
        ("eden8", "float16", 152),
    ],
)
def test_the_head_has_a_codec_of_its_own(
    quick: Quick, federate: Federate, up: str, head: str, payload: int
) -> None:
    experiment = quick(f"wire.up={up}", f"wire.head={head}")
    runtime, folder = runtime_of(experiment), federate(experiment)
    share = json.loads((folder.path / "result.json").read_text())["bytes"]["per_client_round_up"]
    assert share["payload"] == payload and share["head"] == encoded_size(HEAD, head)
    start = runtime.parameters.initial(0)
    vector = start + np.random.default_rng(0).standard_normal(SIZE).astype(start.dtype)
    data = encode_up(runtime, 1, 0, start, vector)
    arrived = decode_up(runtime, 1, 0, start, data)
    rest = slice(0, SIZE - HEAD)
    lost = np.linalg.norm((arrived - vector)[rest]) / np.linalg.norm((vector - start)[rest])
    bound = {"eden4": 0.15, "float32": 0.0, "eden8": 0.01}[up]
    assert lost <= bound and len(data) == size_up(runtime)
    with pytest.raises(ValueError, match="bytes, expected"):
        decode_up(runtime, 1, 0, start, data[:-1])
    with pytest.raises(ValueError, match="bytes, expected"):
        decode_up(runtime, 1, 0, start, data[:3])


@pytest.mark.parametrize(("codec", "half"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_small_changes_survive_two_bytes_per_number(quick: Quick, codec: str, half: float) -> None:
    """Of a vector in bfloat16 nothing would be left here: 1.001 rounds to 1."""
    runtime = runtime_of(quick(f"wire.up={codec}", "engine.dtype=float64"))
    draw = np.random.default_rng(0)
    start = 1 + draw.random(SIZE)
    change = draw.standard_normal(SIZE) * 1e-3
    change[::3] = 0
    data = encode_up(runtime, 1, 0, start, start + change)
    arrived = decode_up(runtime, 1, 0, start, data) - start
    assert len(data) == size_up(runtime) == 2 * SIZE
    np.testing.assert_allclose(arrived, change, rtol=half, atol=1e-7)
    assert not arrived[::3].any()


def test_a_personal_head_needs_no_codec(quick: Quick, federate: Federate) -> None:
    personal = ("federation.personal=head", "federation.evaluation=clients")
    folder = federate(quick("wire.up=eden1", "wire.head=eden8", *personal))
    result = json.loads((folder.path / "result.json").read_text())
    assert result["bytes"]["per_client_round_up"]["payload"] == 4 + 2


@pytest.mark.parametrize("down", ["float64", "float32", "bfloat16", "eden8"])
def test_the_server_takes_changes_from_the_vector_that_the_client_received(
    quick: Quick, federate: Federate, down: str
) -> None:
    """The oracle trains a client from the decoded vector; at 8 bits 0.64 % of the change is lost.

    A server that took the update relative to another vector would be off by the downlink's error,
    which must not stay in its own vector either.
    """
    settings = ("federation.clients=1", "engine.dtype=float64", f"wire.down={down}")
    experiment = quick("wire.up=eden8", *settings, "federation.rounds=2")
    runtime, folder = runtime_of(experiment), federate(experiment)
    vector = runtime.parameters.initial(experiment.seed)
    for number in (1, 2):
        start = decode_down(runtime, number, encode_down(runtime, number, vector))
        trained = train_cohort(
            *(runtime.model, start[None], [runtime.train], [0], experiment.local),
            When(experiment.seed, number, 2),
        ).vectors[0]
        data = encode_up(runtime, number, 0, start, trained)
        arrived = decode_up(runtime, number, 0, start, data)
        lost = np.linalg.norm(arrived - trained) / np.linalg.norm(trained - start)
        assert 1e-3 < lost < 1e-2
        vector = vector + (arrived - start)
    np.testing.assert_allclose(vector_of(folder), vector, rtol=0, atol=1e-12)


def test_the_norm_of_an_update_is_that_of_its_decoded_change(
    quick: Quick, federate: Federate
) -> None:
    experiment = quick(*EDEN, "federation.max_update_norm=50")
    folder = federate(experiment, scaled(1e6), client=1, rounds=[1])
    first, second = folder.rounds()
    assert "is above federation.max_update_norm = 50" in first["failed"][0]["reason"]
    assert (first["clients"], second["clients"]) == (2, 3)


@pytest.mark.parametrize("up", ["eden0.5", "eden1", "eden4"])
@pytest.mark.parametrize(
    "settings",
    [
        ["federation.max_update_norm=auto"],
        ["federation.strategy=geometric_median"],
        ["federation.strategy=multikrum", "federation.byzantine=1"],
        ["federation.strategy=fedmedian", "federation.mixing=nnm", "federation.byzantine=1"],
    ],
    ids=["clipped", "geometric", "multikrum", "nnm"],
)
def test_robust_rules_work_on_decoded_updates(
    quick: Quick, federate: Federate, up: str, settings: list[str]
) -> None:
    """A code with a huge scale, of one of seven clients, moves the vector as little as honest ones.

    The oracle is the distance between two runs without it that differ only in their rotations.
    """
    base = (f"wire.up={up}", "federation.clients=7", "federation.rounds=1", *settings)
    experiment = quick(*base)
    start = runtime_of(experiment).parameters.initial(experiment.seed)
    honest = vector_of(federate(experiment, out="honest")) - start
    attacked = vector_of(federate(experiment, scaled(1e6), client=1, out="attacked")) - start
    assert np.linalg.norm(attacked - honest) < 1.5 * np.linalg.norm(honest)


@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_central_privacy_clips_decoded_updates(
    quick: Quick, federate: Federate, factor: float
) -> None:
    """Without noise the mean of three clipped updates is no longer than the clip."""
    clip = 1e-3
    privacy = ["privacy.unit=client", "privacy.noise_multiplier=0", f"privacy.client_clip={clip}"]
    experiment = quick(*EDEN, *privacy, "federation.rounds=1", "engine.dtype=float64")
    folder = federate(experiment, scaled(factor))
    start = runtime_of(experiment).parameters.initial(experiment.seed)
    moved = np.linalg.norm(vector_of(folder) - start)
    assert 0.1 * clip < moved <= clip * (1 + 1e-9)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (scaled(np.nan), "refused: 1 of 1 scales are NaN, infinite or negative"),
        (scaled(-1), "refused: 1 of 1 scales"),
        (scaled(np.inf), "refused: 1 of 1 scales"),
        (
            lambda reply: changed(reply, v=bytes(UP + 1)),
            "has 16 bytes, expected 15 (82 numbers at 1 bits)",
        ),
        (lambda reply: changed(reply, v=bytes(4 * SIZE)), "has 328 bytes, expected 15"),
        (lambda reply: changed(reply, v=None), "has 0 bytes, expected 15"),
    ],
    ids=["nan", "negative", "infinite", "long", "float32", "missing"],
)
def test_hostile_codes_are_refused_by_name_and_the_others_count(
    quick: Quick, federate: Federate, spoil: Callable[[Message], Message], words: str
) -> None:
    folder = federate(quick(*EDEN), spoil, client=1, rounds=[1])
    first, second = folder.rounds()
    assert words in first["failed"][0]["reason"]
    assert (first["clients"], second["clients"]) == (2, 3)


def test_a_vector_that_is_not_finite_is_refused_by_the_receiver(quick: Quick) -> None:
    runtime = runtime_of(quick(*EDEN))
    start = runtime.parameters.initial(0)
    broken = np.append(start[:-1], np.float32(np.inf))
    with pytest.raises(ValueError, match="1 of 1 scales"):
        decode_up(runtime, 1, 0, start, encode_up(runtime, 1, 0, start, broken))
    with pytest.raises(ValueError, match="1 of 1 scales"):
        decode_down(runtime, 1, encode_down(runtime, 1, broken))


def test_each_client_and_round_has_a_rotation_and_a_round_one_down(quick: Quick) -> None:
    runtime = runtime_of(quick(*EDEN))
    start = runtime.parameters.initial(0)
    vector = start + np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)
    up = {encode_up(runtime, n, client, start, vector) for n in (1, 2) for client in (0, 1)}
    down = {encode_down(runtime, n, vector) for n in (1, 2)}
    assert (len(up), len(down)) == (4, 2)


def test_a_resumed_run_ends_in_the_same_bits(quick: Quick, federate: Federate) -> None:
    experiment = quick("wire.up=eden0.5", "wire.down=eden8", "federation.rounds=3")
    whole = federate(experiment, out="whole")

    def broken(reply: Message) -> Message:
        raise OSError("lost")

    with pytest.raises(RunFailed, match="round 2: 0 of 3"):
        federate(experiment, broken, rounds=[2])
    resumed = federate(experiment, resume=True)
    assert vector_of(whole).tobytes() == vector_of(resumed).tobytes()
