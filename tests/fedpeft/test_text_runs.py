"""Federated runs of tasks of text on small decoders and encoder-decoders in a folder."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from small_families import small_language

import fedpeft

WORDS = ["good", "bad", "dull", "fun", "slow", "great"]
PRIVATE = {"privacy.unit": "example", "privacy.noise_multiplier": 1.0, "privacy.delta": 1e-3}


def saved(family: str, folder: Path) -> Path:
    """Write a small backbone with output embeddings and tokenizer into a folder, in float32."""
    backbone = small_language(family)
    language: Any = copy.deepcopy(backbone.language).float()
    language.set_attn_implementation("eager")
    language.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return folder


def table(path: Path, count: int = 40) -> Path:
    """Write pairs of a source and a target: a word and the same word."""
    rows = [
        {"question": f"the film was {WORDS[k % 6]}", "answer": WORDS[k % 6]} for k in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(family: str, tmp_path: Path, **more: object) -> dict[str, object]:
    return {
        "backbone": str(saved(family, tmp_path / "model")),
        "task.name": "custom",
        "task.kind": "text",
        "task.train": str(table(tmp_path / "pairs.jsonl")),
        "task.source": "question",
        "task.target": "answer",
        "task.prompt": "{source} =",
        "task.max_length": 24,
        "task.max_target": 8,
        "task.metric": "chrf",
        "method.name": "lora",
        "method.rank": 2,
        "federation.clients": 2,
        "federation.rounds": 2,
        "engine.device": "cpu",
        "output.plots": False,
        **more,
    }


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
