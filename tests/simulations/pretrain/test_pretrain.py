"""Models pretrained from scratch on a few made-up sentences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from fedpeft.errors import UserError
from simulations.benchmarks.pretrain.__main__ import main
from simulations.benchmarks.pretrain.corpus import blocks, sentences, train_tokenizer
from simulations.benchmarks.pretrain.models import Denoised

SMALL = ["--length", "16", "--batch", "4", "--vocabulary", "300", "--lr", "0.01"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two columns of sentences, and a development file that is not read."""
    path = tmp_path / "text"
    path.mkdir()
    lines = ["sentence1\tsentence2\tlabel"]
    animals = ("cat", "dog", "crow", "mouse")
    lines += [f"The {a} sees a {b}.\tA {b} is seen.\t1" for a in animals for b in animals]
    (path / "train.tsv").write_text("\n".join(lines) + "\n")
    (path / "dev.tsv").write_text("sentence1\tsentence2\nhidden\thidden\n")
    return path


def test_texts_are_read_once_and_only_those_to_train_on(folder: Path) -> None:
    texts = sentences(folder)
    assert len(texts) == 16 + 4 and "hidden" not in texts
    with pytest.raises(UserError, match=r"--text .*: no texts; expected train.tsv files"):
        sentences(folder / "nowhere")


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("batch", "0", "--batch 0: expected at least 1"),
        ("tokens", "-5", "--tokens -5: expected at least 1"),
        ("tokens", "nan", "--tokens nan: expected at least 1"),
        ("vocabulary", "100", "--vocabulary 100: expected at least 261"),
        ("length", "100000", "--length 100000: the texts are shorter than one block"),
    ],
)
def test_wrong_options_are_one_line(
    folder: Path, tmp_path: Path, option: str, value: str, expected: str
) -> None:
    arguments = ["decoder", "--text", str(folder), "--out", str(tmp_path / "out"), *SMALL]
    with pytest.raises(UserError, match=expected):
        main([*arguments, f"--{option}", value])


def test_blocks_hold_the_texts_one_after_the_other(folder: Path) -> None:
    texts = sentences(folder)
    tokenizer = train_tokenizer(texts, 300)
    rows = blocks(texts, tokenizer, 16, np.random.default_rng(0))
    read = tokenizer.batch_decode(np.split(rows.reshape(-1), 1), skip_special_tokens=False)[0]
    found = [text.strip() for text in read.replace("<s>", "").split("</s>")]
    assert {*found[:-1]} <= {*texts} and len(found) > 15


def test_a_denoiser_hides_about_a_third_and_learns_the_whole(folder: Path) -> None:
    texts = sentences(folder)
    tokenizer = train_tokenizer(texts, 300)
    row = np.arange(10, 110, dtype=np.int32)
    collate = Denoised(tokenizer, np.random.default_rng(0))
    batch = collate([{"input_ids": row}] * 200)
    np.testing.assert_array_equal(batch["labels"], np.tile(row, (200, 1)))
    kept = batch["attention_mask"].sum(1) - (batch["input_ids"] == tokenizer.mask_token_id).sum(1)
    assert 0.2 < 1 - float(kept.float().mean()) / 100 <= 0.3
    visible = batch["input_ids"][0][batch["attention_mask"][0].bool()].tolist()
    assert {*visible} <= {*row.tolist(), tokenizer.mask_token_id}


@pytest.mark.parametrize(
    ("kind", "loader"),
    [
        ("decoder", AutoModelForCausalLM),
        pytest.param("encoder-decoder", AutoModelForSeq2SeqLM, marks=pytest.mark.long),
    ],
)
def test_a_model_learns_and_transformers_loads_it(
    folder: Path, tmp_path: Path, kind: str, loader: type
) -> None:
    out = tmp_path / "model"
    main([kind, "--text", str(folder), "--out", str(out), "--tokens", "2000", *SMALL])
    losses = [json.loads(line).get("loss") for line in (out / "log.jsonl").read_text().splitlines()]
    known = [loss for loss in losses if loss]
    assert known[-1] < 0.8 * known[0]
    tokenizer, model = AutoTokenizer.from_pretrained(out), loader.from_pretrained(out)
    written = model.generate(**tokenizer("The cat", return_tensors="pt"), max_new_tokens=4)
    assert tokenizer.decode(written[0])


def test_a_run_that_was_ended_continues(folder: Path, tmp_path: Path) -> None:
    """Its weights are those of a run that was not."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    arguments = ["decoder", "--text", str(folder), "--tokens", "640", "--save", "5", *SMALL]
    main([*arguments, "--out", str(whole)])
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "checkpoints" / "checkpoint-10")
    (parts / "model.safetensors").unlink()
    main([*arguments, "--out", str(parts)])
    one, other = (AutoModelForCausalLM.from_pretrained(out) for out in (whole, parts))
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    steps = [json.loads(line)["step"] for line in (parts / "log.jsonl").read_text().splitlines()]
    assert steps.count(10) == 4 and steps.count(4) == 1  # the last five steps ran twice
