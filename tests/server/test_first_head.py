"""Heads that start from sums over the clients' features, in whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from messaging import changed
from safetensors.numpy import load_file
from threadpoolctl import threadpool_info, threadpool_limits
from torch.nn import LayerNorm, Parameter

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.fitting import check_fitting
from fedpeft.heads.closed import closed_form
from fedpeft.methods import build_method
from fedpeft.runtime import runtime_of
from fedpeft.starting import decode_moments, encode_moments, moments_of, started_vector
from fedpeft.tasks import described
from fedpeft.tasks.metrics import scores
from fedpeft.training import evaluate
from server.checkpoints import START
from server.host.runs import read_run
from server.runfolder import RunFolder

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
SUMS = ["head.start=sums", "method.init=zeros", "task.train_limit=120"]
EXACT = [*SUMS, "head.sums=float64", "head.moments=float64", "engine.dtype=float64"]
ONCE = ["federation.rounds=1"]
TASKS = {
    "classes": ["task.name=synthetic/sentiment"],
    "tags": ["task.name=synthetic/entities"],
    "score": ["task.name=synthetic/similarity"],
}


def head_of(folder: RunFolder) -> np.ndarray:
    return load_file(folder.path / "checkpoint.safetensors")[START]


def pooled_head(experiment: Experiment) -> np.ndarray:
    """Return the head of all training examples in one place."""
    runtime = runtime_of(experiment)
    parameters = runtime.parameters
    moments = moments_of(runtime.model, parameters.initial(experiment.seed), runtime.train)
    head = parameters.head.nearest(closed_form(runtime.info.kind, moments))
    return np.concatenate([head[name].reshape(-1) for name in parameters.head.parameters()])


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize(
    "clients",
    [
        ["federation.clients=1"],
        ["federation.clients=4", "partition.kind=quantity", "engine.cohort=1"],
        ["federation.clients=7", "engine.cohort=4"],
    ],
    ids=["one", "uneven", "cohort"],
)
def test_the_start_is_that_of_all_examples_in_one_place(
    quick: Quick, federate: Federate, kind: str, clients: list[str]
) -> None:
    experiment = quick(*EXACT, *ONCE, *TASKS[kind], *clients)
    got, expected = head_of(federate(experiment)), pooled_head(experiment)
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9)


def test_the_start_of_one_exchange_counts_its_bytes_and_its_score(
    quick: Quick, federate: Federate
) -> None:
    folder = federate(quick(*SUMS, "head.sums=eden8", "head.moments=eden1"))
    result = json.loads((folder.path / "result.json").read_text())
    lines = [line for line in folder.sent() if line["kind"] == "start"]
    assert [(line["round"], line["client"]) for line in lines] == [(0, 0), (0, 1), (0, 2)]
    facts, totals, moments = 4 * (2 + 2), 4 + 2 * 32, 4 + 32 * 33 // 2 // 8
    assert {line["up"]["payload"] for line in lines} == {facts + totals + moments}
    sent = result["bytes"]["start"]
    assert sent["up"]["payload"] == 3 * (facts + totals + moments)
    assert sent["down"]["payload"] == 0
    assert result["bytes"]["evaluate"]["up"]["message"] == 0
    assert result["start"]["evaluated"] == 40
    assert result["start"]["score"] is not None
    assert [line["round"] for line in folder.rounds()] == [1, 2]
    shown = read_run(folder.path).bytes
    assert shown["start"] == {way: sent[way]["message"] for way in ("up", "down")}
    handshakes = result["bytes"]["handshake"]["down"]["message"]
    assert shown["handshake"]["down"] == handshakes > 0


@pytest.mark.parametrize(
    "down",
    [
        ["wire.down=eden4"],
        ["wire.down=delta1"],
        ["wire.down=eden8", "nested.d=8"],
        [
            *("wire.down=scalars", "wire.up=scalars", "local.perturbations=2", "local.steps=1"),
            *("local.optimizer=sgd", "local.max_grad_norm=0"),
        ],
    ],
    ids=["eden", "delta", "nested", "scalars"],
)
def test_each_client_gets_the_start_once_and_evaluates_what_the_server_has(
    quick: Quick, federate: Federate, down: list[str]
) -> None:
    """Client 0 is asked in some rounds only; the score at clients needs exact vectors there."""
    common = [*SUMS, *down, "federation.rounds=4", "federation.fraction=0.67"]
    common += ["task.eval_limit=400"]
    at_clients = federate(quick(*common, "federation.evaluation=clients"), out="clients")
    at_server = federate(quick(*common), out="server")
    scores = [[line["score"] for line in folder.rounds()] for folder in (at_clients, at_server)]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)  # eden rounds
    head = 4 * (2 * 32 + 2)
    extra = [
        line["down"]["message"] - line["down"]["payload"]
        for line in at_clients.sent()
        if line["kind"] in ("train", "evaluate")
    ]
    assert sum(size > head for size in extra) == 3  # once for each client


@pytest.mark.parametrize("devices", [[], ["devices.step_seconds=2"]], ids=["plain", "devices"])
def test_the_start_is_not_asked_again_after_an_interruption(
    quick: Quick, federate: Federate, devices: list[str]
) -> None:
    at_clients = ["wire.down=eden4", "federation.evaluation=clients"]
    experiment = quick(*SUMS, *at_clients, *devices)
    whole = federate(experiment, out="whole")

    def interrupt(reply: Message) -> Message:
        raise KeyboardInterrupt

    for number, kind in ((0, "train"), (0, "evaluate"), (1, "train"), (2, "train")):
        out = f"{kind}{number}"
        with pytest.raises(KeyboardInterrupt):
            federate(experiment, interrupt, kind, 1, rounds=[number], out=out)
        resumed = federate(experiment, resume=True, out=out)
        vectors = [(f.path / "vector.safetensors").read_bytes() for f in (whole, resumed)]
        assert vectors[0] == vectors[1], out
        asked = [line for line in resumed.sent() if line["kind"] == "start" and "up" in line]
        assert len(asked) == 3, out
        results = [json.loads((f.path / "result.json").read_text()) for f in (whole, resumed)]
        assert results[0]["start"] == results[1]["start"], out
        times = [[line["virtual"] for line in f.rounds()] for f in (whole, resumed)]
        assert times[0] == times[1], out


@pytest.mark.parametrize("bad", range(5))
def test_invalid_moments_are_refused_by_name_and_the_others_count(
    quick: Quick, federate: Federate, bad: int
) -> None:
    """Too few bytes; a NaN; more examples of a class than there are; more than the client has."""
    reasons = ["bytes, expected", "NaN or infinite", *["impossible counts for 40 examples"] * 3]

    def spoil(reply: Message) -> Message:
        sent = bytes(reply.content["m"]["v"])
        facts = np.frombuffer(sent[:16], "<f4").copy()  # rows, energy, examples of each class
        places = [[], [1], [2], [3], [0, 3]][bad]
        facts[places] += np.nan if places == [1] else 7
        return changed(reply, v=facts.tobytes() + sent[16 : len(sent) - (bad == 0)])

    experiment = quick(*SUMS, *ONCE)
    folder = federate(experiment, spoil, client=1, rounds=[0])
    others = federate(quick(*SUMS, *ONCE), out="whole")
    assert not np.array_equal(head_of(folder), head_of(others))
    (note,) = folder.noted()
    assert note.startswith("client 1 sent no sums for the start: refused: ")
    assert reasons[bad] in note
    with pytest.raises(RunFailed, match="round 0: 2 of 3 clients succeeded"):
        strict = quick(*SUMS, *ONCE, "federation.min_success=3")
        federate(strict, spoil, client=1, rounds=[0], out="strict")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("score", {0: 7}),  # rows
        ("score", {2: 7}),  # examples
        ("score", {3: 1e6}),  # sum of scores, above what the sum of squares allows
        ("score", {4: 1e30}),  # sum of squares
        ("score", {3: 1e60, 4: 1e120}),
        ("score", {1: 1e30}),  # energy
        ("tags", {0: 1e6}),  # words
        ("tags", {2: 7}),  # weight of the words with the first tag
        ("tags", {1: 1e30}),
    ],
)
def test_impossible_facts_of_scores_and_tags_are_refused(
    quick: Quick, kind: str, changes: dict[int, float]
) -> None:
    runtime = runtime_of(quick(*SUMS, *TASKS[kind], "head.sums=float64"))
    initial, count = runtime.parameters.initial_shared(0), len(runtime.train)
    code = encode_moments(runtime, 0, moments_of(runtime.model, initial, runtime.train))
    assert decode_moments(runtime, 0, code, count).rows >= count
    facts = np.frombuffer(code[:40], "<f8").copy()
    for place, change in changes.items():
        facts[place] += change
    with pytest.raises(ValueError, match=r"impossible counts|features or scores above"):
        decode_moments(runtime, 0, facts.tobytes() + code[40:], count)
    with pytest.raises(ValueError, match="impossible counts"):
        decode_moments(runtime, 0, code, count - 1)


def test_clients_of_one_score_each_give_the_start_of_all(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    """Small scores are not hidden by the features, though each client's have no deviation."""
    heads = []
    for factor in (1, 1e-4):
        file = tmp_path / f"scores{factor}.csv"
        rows = "".join(f"a text of number {n},{factor * (n // 20)}\n" for n in range(60))
        file.write_text("text,label\n" + rows)
        data = ["task.name=custom", "task.kind=score", f"task.train={file}", f"task.dev={file}"]
        uneven = ["partition.kind=bins", "partition.strictness=1", "head.sums=eden4"]
        folder = federate(quick("head.start=sums", *data, *uneven, *ONCE), out=f"run{factor}")
        heads.append(head_of(folder)[:-1] / factor)
    np.testing.assert_allclose(heads[1], heads[0], rtol=0, atol=0.01 * np.abs(heads[0]).max())


@pytest.mark.parametrize("kind", TASKS)
def test_the_bits_of_a_start_do_not_depend_on_threads_of_numpy(quick: Quick, kind: str) -> None:
    runtime = runtime_of(quick(*SUMS, *TASKS[kind], "head.moments=pca8"))
    initial, count = runtime.parameters.initial_shared(0), len(runtime.train)
    found = set()
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            counts = {info["num_threads"] for info in threadpool_info() if "blas" in str(info)}
            assert threads in counts
            moments = moments_of(runtime.model, initial, runtime.train)
            code = encode_moments(runtime, 0, moments)
            vector = started_vector(runtime, decode_moments(runtime, 0, code, count))
        found.add((code, vector.tobytes()))
    assert len(found) == 1


def test_the_score_of_a_random_start_is_that_of_the_initial_vector(
    quick: Quick, federate: Federate
) -> None:
    experiment = quick(*ONCE, "head.start=random")
    folder = federate(experiment)
    runtime = runtime_of(experiment)
    initial = evaluate(runtime.model, runtime.parameters.initial_shared(0), runtime.dev)
    started = folder.started()
    assert started is not None and started["score"] is not None
    assert started["score"] == scores(initial.statistics, "classes")["accuracy"]
    assert not [line for line in folder.sent() if not line["round"]]


def test_clients_are_not_asked_for_the_score_of_a_random_start(
    quick: Quick, federate: Federate
) -> None:
    folder = federate(quick(*ONCE, "head.start=random", "federation.evaluation=clients"))
    assert folder.started() is None
    asked = {line["round"] for line in folder.sent()}
    assert asked == {1}


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("limit", [1, 2])
def test_one_or_two_examples_give_a_start(
    quick: Quick, federate: Federate, kind: str, limit: int
) -> None:
    few = [*TASKS[kind], f"task.train_limit={limit}", "federation.clients=1", "method.init=zeros"]
    folder = federate(quick("head.start=sums", *few, *ONCE))
    started = folder.started()
    assert started is not None and started["score"] is not None
    assert np.isfinite(head_of(folder)).all()


def test_texts_that_are_all_the_same_give_the_shares_of_the_classes(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    file = tmp_path / "same.csv"
    file.write_text("text,label\n" + "same,a\nsame,b\nsame,b\n" * 8)
    data = ["task.name=custom", f"task.train={file}", f"task.dev={file}"]
    folder = federate(quick("head.start=sums", "method.init=zeros", *data, *ONCE))
    started = folder.started()
    assert started is not None and started["score"] == pytest.approx(2 / 3)
    entropy = -(np.log(2 / 3) * 2 + np.log(1 / 3)) / 3
    assert started["eval_loss"] == pytest.approx(entropy, abs=1e-3)


def test_a_start_that_the_downlink_cannot_express_is_not_stored(
    quick: Quick, federate: Federate, tmp_path: Path
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text("text,label\n" + "".join(f"house {n},{100_000 + n}\n" for n in range(30)))
    data = ["task.name=custom", "task.kind=score", f"task.train={file}", f"task.dev={file}"]
    with pytest.raises(RunFailed, match=r"round 0: .* as float16; .* choose another wire\.down"):
        federate(quick("head.start=sums", *data, *ONCE, "wire.down=float16"), out="run")
    assert RunFolder(tmp_path / "run").checkpoint() is None


@pytest.mark.parametrize("sums", ["float32", "eden8"])
@pytest.mark.parametrize(("scale", "offset"), [(1, 100_000), (0.001, 0), (100, 2000)])
def test_the_start_is_that_of_standardized_scores(
    quick: Quick, federate: Federate, tmp_path: Path, sums: str, scale: float, offset: int
) -> None:
    heads = []
    for name, factor, level in (("plain", 1, 0), ("moved", scale, offset)):
        file = tmp_path / f"{name}.csv"
        rows = "".join(f"a text of number {n},{level + factor * (n % 7)}\n" for n in range(60))
        file.write_text("text,label\n" + rows)
        data = ["task.name=custom", "task.kind=score", f"task.train={file}", f"task.dev={file}"]
        codecs = [f"head.sums={sums}", "head.moments=float32"]
        folder = federate(quick("head.start=sums", *data, *codecs, *ONCE), out=name)
        heads.append(head_of(folder)[:-1] / factor)  # without the bias
    np.testing.assert_allclose(heads[1], heads[0], rtol=0, atol=0.01 * np.abs(heads[0]).max())


@pytest.mark.parametrize("setting", ["head.sums", "head.moments"])
def test_a_format_that_sums_over_examples_pass_is_refused(setting: str) -> None:
    with pytest.raises(UserError, match=rf"{setting} = 'float16': .*sums over examples pass"):
        Experiment.load("", [f"{setting}=float16"])


def test_features_that_are_not_finite_are_refused(
    quick: Quick, federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = quick("head.start=sums", *ONCE)
    backbone = runtime_of(experiment).backbone.model
    norm = next(module for module in backbone.modules() if isinstance(module, LayerNorm))
    # Other tests share the backbone; an attribute of a module cannot be put back.
    spoilt = Parameter(torch.full_like(norm.bias, torch.nan))
    monkeypatch.setitem(norm._parameters, "bias", spoilt)
    with pytest.raises(RunFailed, match=r"round 0: 0 of 3 clients succeeded.* NaN or infinite"):
        federate(experiment)


def test_second_moments_that_are_too_large_for_a_message_are_refused() -> None:
    settings = ["backbone=roberta-base", "method.name=linear", "head.start=sums"]
    experiment = Experiment.load("", [*settings, "head.moments=float64"])
    wide = replace(KNOWN_SHAPES["roberta-base"], width=20_000)
    method = build_method(experiment.method, wide, 0)
    info = described(experiment.task)
    assert info is not None
    with pytest.raises(UserError, match=r"a client would send 1\.60 GB of second moments"):
        check_fitting(experiment, wide, method, info)
