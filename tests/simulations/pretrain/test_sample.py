"""The random models and made-up tables of the small studies of text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from fedpeft.errors import UserError
from fedpeft.randomness import generator
from simulations.benchmarks.pretrain.sample import ROWS, instruction, main


def test_models_and_tables_are_written_once(tmp_path: Path) -> None:
    out = tmp_path / "sample"
    main(["--out", str(out)])
    columns = {"summaries": "document", "translations": "en", "instructions": "instruction"}
    texts = {}
    for name, column in columns.items():
        lines = (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        texts[name] = [json.loads(line)[column] for line in lines]
        assert len(lines) == ROWS
    for name, auto in (("bart", AutoModelForSeq2SeqLM), ("mbart", AutoModelForSeq2SeqLM)):
        assert auto.from_pretrained(out / name).config.model_type == name
    assert AutoModelForCausalLM.from_pretrained(out / "llama").config.model_type == "llama"
    tokenizer = AutoTokenizer.from_pretrained(out / "llama")
    ids = tokenizer(texts["summaries"][0])["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == texts["summaries"][0]
    with pytest.raises(UserError, match="exists already; choose another"):
        main(["--out", str(out)])


def test_answers_follow_from_requests() -> None:
    draw, kinds = generator(0, "test-sample"), set()
    for _ in range(50):
        row = instruction(draw)
        kind, _, listed = row["instruction"].partition(": ")
        words = listed.split()
        expected = {
            "Repeat": listed,
            "Reverse": " ".join(words[::-1]),
            "Count": ["one", "two", "three", "four", "five"][len(words) - 1],
        }
        assert row["response"] == expected[kind]
        kinds.add(kind)
    assert len(kinds) == 3
