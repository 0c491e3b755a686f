"""Federated runs of tasks of text on small decoders and encoder-decoders in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from text_runs import settings, table
from transformers import pipeline

import fedpeft
from fedpeft.errors import UserError
from fedpeft.export import export
from fedpeft.predicting import predict, read_texts
from fedpeft.serving.catalog import open_catalog
from fedpeft.trained import Trained

#: peft uses names that transformers deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
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

    with pytest.raises(UserError, match="--format onnx: its graph has no output embeddings"):
        export(trained, "onnx", tmp_path / "onnx")
    with pytest.raises(UserError, match="a run that writes text is not served"):
        open_catalog(tmp_path / "run", 5).add("run", tmp_path / "run")

    for kind in ("hf", "peft"):
        assert written_by_export(trained, kind, tmp_path / kind, examples.text) == written
    if family in ("gpt2", "llama"):  # transformers 5 has no pipeline for encoder-decoders
        # This tokenizer adds an end token, and so the pipeline writes another text than predict.
        assert "`transformers.pipeline` does not" in (tmp_path / "hf/README.md").read_text()
        write = pipeline("text-generation", str(tmp_path / "hf"), device="cpu")
        prompt, task = examples.text[0], trained.experiment.task
        ids = write.tokenizer(prompt, return_tensors="pt")["input_ids"]
        options = {"max_new_tokens": task.max_target, "num_beams": task.beams, "do_sample": False}
        greedy = write.tokenizer.decode(write.model.generate(ids, **options)[0], True)
        # The pipeline decodes what is new on its own, and then loses a space.
        assert write(prompt)[0]["generated_text"].replace(" ", "") == greedy.replace(" ", "")


def written_by_export(trained: Trained, kind: Any, out: Path, texts: Sequence[str]) -> list[str]:
    """Return the texts that the code in the README of an export writes."""
    export(trained, kind, out)
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace('"."', repr(str(out))), names)
    return [names["write"](text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_input_embeddings_are_exported_apart_from_output_ones(family: str, tmp_path: Path) -> None:
    """Both are one weight of the backbone, and the method changes the input's alone."""
    more = {"method.name": "full", "federation.rounds": 1, "task.metric": ""}
    chosen = {k: v for k, v in settings(family, tmp_path, **more).items() if k != "method.rank"}
    fedpeft.simulate(chosen, tmp_path / "run")
    trained = Trained.read(tmp_path / "run")
    examples = read_texts(trained, table(tmp_path / "new.jsonl", 7))
    written = [prediction.value for prediction in predict(trained, examples)]
    assert written_by_export(trained, "hf", tmp_path / "hf", examples.text) == written


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
