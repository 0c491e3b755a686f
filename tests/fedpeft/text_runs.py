"""Settings and files of small runs of tasks of text."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from small_families import small_language

WORDS = ["good", "bad", "dull", "fun", "slow", "great"]


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
