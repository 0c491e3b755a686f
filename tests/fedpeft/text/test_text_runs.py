"""Federated runs of tasks of text on small decoders and encoder-decoders in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_runs import settings, table

import fedpeft
from fedpeft.errors import UserError
from fedpeft.export import export
from fedpeft.predicting import predict, read_texts
from fedpeft.serving.catalog import open_catalog
from fedpeft.trained import Trained

PRIVATE = {"privacy.unit": "example", "privacy.noise_multiplier": 1.0, "privacy.delta": 1e-3}


@pytest.mark.slow
@pytest.mark.parametrize("private", [{}, PRIVATE], ids=["plain", "private"])
@pytest.mark.parametrize("family", ["gpt2", "bart", "t5"])
def test_a_federation_trains(family: str, private: dict[str, object], tmp_path: Path) -> None:
    result = fedpeft.simulate(settings(family, tmp_path, **private), tmp_path / "run")
    rounds = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    scores = {"accuracy", "perplexity", "exact", "rougeL", "bleu", "chrf"}
    assert {*rounds[-1]["metrics"]} == scores
    assert rounds[-1]["score"] == rounds[-1]["metrics"]["chrf"]
    assert (
        result.vector.size == json.loads((tmp_path / "run/result.json").read_text())["vector_size"]
    )
    if not private:
        assert rounds[1]["eval_loss"] < rounds[0]["eval_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama", "bart", "t5"])
def test_a_run_predicts_and_its_exports_write_the_same_texts(family: str, tmp_path: Path) -> None:
    """The exported model is used as its README says, with transformers alone."""
    fedpeft.simulate(settings(family, tmp_path, **{"federation.rounds": 1}), tmp_path / "run")
    trained = Trained.read(tmp_path / "run")
    examples = read_texts(trained, table(tmp_path / "new.jsonl", 7))
    written = [str(prediction.value) for prediction in predict(trained, examples)]
    assert len(written) == 7 and any(written)

    export(trained, "vector", tmp_path / "v.safetensors")
    again = Trained.read(tmp_path / "v.safetensors")
    assert [prediction.value for prediction in predict(again, examples)] == written

    for kind in ("peft", "onnx"):
        with pytest.raises(UserError, match=f"--format {kind} works for bert and roberta"):
            export(trained, kind, tmp_path / kind)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a run that writes text is not served"):
        open_catalog(tmp_path / "run", 5).add("run", tmp_path / "run")

    export(trained, "hf", tmp_path / "plain")
    card = (tmp_path / "plain/README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    code = code.replace('"."', repr(str(tmp_path / "plain")))
    names: dict[str, Any] = {}
    exec(code, names)
    assert [names["write"](source) for source in examples.text] == written


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_tied_embeddings_that_a_method_changes_are_not_exported(
    family: str, tmp_path: Path
) -> None:
    more = {"method.name": "full", "federation.rounds": 1, "task.metric": ""}
    chosen = {k: v for k, v in settings(family, tmp_path, **more).items() if k != "method.rank"}
    fedpeft.simulate(chosen, tmp_path / "run")
    trained = Trained.read(tmp_path / "run")
    with pytest.raises(UserError, match=r"changes '\S+', which this backbone uses as output"):
        export(trained, "hf", tmp_path / "plain")
    assert not (tmp_path / "plain").exists()


@pytest.mark.slow
def test_clients_evaluate_as_the_server_does(tmp_path: Path) -> None:
    """Sums of the clients' statistics give the metrics of all texts together."""
    chosen = settings("gpt2", tmp_path, **{"federation.rounds": 1})
    server = fedpeft.simulate(chosen, tmp_path / "a")
    clients = fedpeft.simulate({**chosen, "federation.evaluation": "clients"}, tmp_path / "b")
    first, second = (
        json.loads((tmp_path / name / "result.json").read_text())["metrics"] for name in "ab"
    )
    assert first == pytest.approx(second, rel=1e-6)
    assert server.score == pytest.approx(clients.score)
