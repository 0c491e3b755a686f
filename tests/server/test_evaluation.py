"""Metrics from the clients' sums are those of the whole dev set."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from rich.console import Console

from fedpeft.backbones.tiny import tiny_backbone
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.tasks import caveats
from server.runfolder import RunFolder
from simulations.results import print_result

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]


@pytest.mark.parametrize("task", ["synthetic/sentiment", "synthetic/inference"])
@pytest.mark.parametrize("clients", [3, 7])
def test_evaluation_at_clients_gives_exactly_the_servers_metrics(
    quick: Quick, federate: Federate, task: str, clients: int
) -> None:
    settings = (f"task.name={task}", f"federation.clients={clients}", "local.lr=0.05")
    there = federate(quick(*settings, "federation.evaluation=clients"), out="there").rounds()
    here = federate(quick(*settings), out="here").rounds()
    assert [line["loss"] for line in there] == [line["loss"] for line in here]  # the same training
    assert [line["metrics"] for line in there] == [line["metrics"] for line in here]
    assert [line["score"] for line in there] == [line["metrics"]["accuracy"] for line in here]
    for one, other in zip(there, here, strict=True):
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], rel=1e-5)


def test_clients_measure_pearson_and_only_the_server_spearman(
    quick: Quick, federate: Federate
) -> None:
    exact = ("engine.dtype=float64", "wire.up=float64", "wire.down=float64")
    settings = ("task.name=synthetic/similarity", "local.lr=0.01", *exact)
    there = federate(quick(*settings, "federation.evaluation=clients"), out="there").rounds()
    here = federate(quick(*settings), out="here").rounds()
    for one, other in zip(there, here, strict=True):
        assert one["metrics"]["spearman"] is None
        assert -1 <= other["metrics"]["spearman"] <= 1
        assert other["metrics"]["spearman"] != 0
        assert one["score"] == pytest.approx(other["score"], rel=1e-9)
        assert other["score"] == other["metrics"]["pearson"] != 0


def test_eval_every_skips_rounds_but_not_the_last(quick: Quick, federate: Federate) -> None:
    folder = federate(quick("federation.rounds=5", "output.eval_every=2"))
    scores = [line["score"] for line in folder.rounds()]
    assert [score is not None for score in scores] == [False, True, False, True, True]
    between = folder.rounds()[0]
    assert between["eval_loss"] is between["metrics"] is None
    assert between["loss"] > 0


def test_a_client_that_does_not_evaluate_is_noted_once_and_named_if_none_does(
    quick: Quick, federate: Federate
) -> None:
    def refuse(reply: Message) -> Message:
        raise OSError("the secret file is locked")

    def spoiled(**which: Any) -> Any:
        at_clients = quick("federation.evaluation=clients")
        return federate(at_clients, refuse, "evaluate", **which)

    (noted,) = spoiled(client=1, out="one").noted()
    assert noted.startswith("client 1 did not evaluate: error 2: OSError at ")
    with pytest.raises(RunFailed, match=r"round 1: no client evaluated \(client 0: error 2: OSErr"):
        spoiled(out="all")


@pytest.mark.parametrize("kind", ["classes", "score"])
def test_outputs_that_are_not_finite_give_no_score(
    tmp_path: Path, quick: Quick, federate: Federate, kind: str
) -> None:
    """NaN logits count as the first class, and NaN scores as no correlation."""
    model, tokenizer = tiny_backbone()
    broken = tokenizer.convert_tokens_to_ids("great")  # only texts of the dev set have it
    with torch.no_grad():
        model.get_input_embeddings().weight[broken] = float("nan")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    labels = ("1", "2") if kind == "score" else ("first", "second")
    rows = [("a good film", labels[0]), ("a bad film", labels[1])] * 20
    for name, more in (("train", ""), ("dev", " great")):
        lines = [
            f"{text}{more if k % 2 else ''}\t{label}\n" for k, (text, label) in enumerate(rows)
        ]
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(lines))
    files = (
        "task.name=custom",
        f"task.path={tmp_path}",
        "task.train=train.tsv",
        "task.dev=dev.tsv",
    )
    settings = quick(f"backbone={tmp_path / 'model'}", *files, f"task.kind={kind}")
    folder = federate(settings)
    for line in folder.rounds():
        assert line["score"] is line["eval_loss"] is None
        assert line["evaluated"] == 40
        assert not {*line["metrics"].values()} - {None}
        assert line["loss"] > 0
        assert line["caveats"]["not_finite"] == 1
    result = json.loads((folder.path / "result.json").read_text())
    assert result["score"] is None and caveats.NO_SCORE in result["remarks"]
    assert folder.noted() == []  # no node is absent
    print_result(Console(file=(printed := io.StringIO())), result, folder, 2)
    assert " undefined after 2 rounds" in printed.getvalue()
