"""Pretrain a small decoder or encoder-decoder on the sentences of a folder.

Writes a folder that transformers loads, and ``log.jsonl`` with the losses. A run that was ended
continues from its last checkpoint. A model may repeat what it has read: keep it where the texts may
be kept.

Example:
    python -m simulations.benchmarks.pretrain decoder --text ../shared/data/glue --out build/decoder
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from fedpeft.errors import UserError
from fedpeft.randomness import generator
from simulations.benchmarks.common import script
from simulations.benchmarks.pretrain.corpus import blocks, sentences, train_tokenizer
from simulations.benchmarks.pretrain.models import KINDS, RATES, Continued, Denoised


class Log(TrainerCallback):
    """Appends each logged line to a file."""

    def __init__(self, path: Path):
        """Write to ``path``."""
        self._path = path

    def on_log(self, args, state, control, logs=None, **more):  # type: ignore[no-untyped-def]
        """Append what the trainer logs."""
        line = json.dumps({"step": state.global_step, **(logs or {})})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simulations.benchmarks.pretrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=[*KINDS])
    parser.add_argument("--text", type=Path, required=True, help="folder with train.tsv files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--tokens", type=float, default=30e6, help="to train on (30e6)")
    parser.add_argument("--length", type=int, default=64, help="tokens of a block (64)")
    parser.add_argument("--batch", type=int, default=64, help="blocks of a step (64)")
    parser.add_argument("--lr", type=float, help="largest learning rate (2e-3; with encoder: 5e-4)")
    parser.add_argument("--vocabulary", type=int, default=8000, help="tokens (8000)")
    parser.add_argument("--save", type=int, default=500, help="steps between checkpoints (500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true", help="multiply in bfloat16")
    options = parser.parse_args(arguments)
    if options.lr is None:
        options.lr = RATES[options.kind]
    # 256 bytes and the special tokens are entries of every vocabulary.
    least = {"tokens": 1, "length": 2, "batch": 1, "lr": 1e-9, "vocabulary": 261, "save": 1}
    for name, smallest in least.items():
        if not getattr(options, name) >= smallest:
            raise UserError(f"--{name} {getattr(options, name):g}: expected at least {smallest:g}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or continue to train."""
    options = options_of(arguments)
    texts = sentences(options.text)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(out, texts, options.vocabulary)
    rows = blocks(texts, tokenizer, options.length, generator(options.seed, "pretrain"))
    if not len(rows):
        raise UserError(f"--length {options.length}: the texts are shorter than one block")
    set_seed(options.seed)
    model = KINDS[options.kind](tokenizer, options.length)
    steps = max(1, int(options.tokens / options.batch / options.length))
    print(f"{model.num_parameters():,} parameters, {rows.size:,} tokens, {steps:,} steps")
    spans = generator(options.seed, "pretrain-spans")
    collate = Continued(tokenizer) if options.kind == "decoder" else Denoised(tokenizer, spans)
    trainer = Trainer(
        model,
        _settings(options, steps),
        data_collator=collate,
        train_dataset=[{"input_ids": row} for row in rows],
        callbacks=[Log(out / "log.jsonl")],
    )
    trainer.remove_callback(PrinterCallback)  # ``Log`` prints
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(out / "checkpoints")))
    trainer.save_model(str(out))


def _tokenizer(out: Path, texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a run that is continued, or a new one."""
    if not (out / "tokenizer.json").exists():
        train_tokenizer(texts, vocabulary).save_pretrained(out)
    return PreTrainedTokenizerFast.from_pretrained(out)


def _settings(options: argparse.Namespace, steps: int) -> TrainingArguments:
    folder = options.out / "checkpoints"
    folder.mkdir(exist_ok=True)
    return TrainingArguments(
        str(folder),
        per_device_train_batch_size=options.batch,
        max_steps=steps,
        learning_rate=options.lr,
        lr_scheduler_type="cosine",
        warmup_steps=min(200, steps // 10),
        weight_decay=0.01,
        bf16=options.bf16,
        logging_steps=max(1, min(100, steps // 5)),
        save_steps=options.save,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        seed=options.seed,
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
    )


if __name__ == "__main__":
    script(main)
