"""Write what the small studies of text read: random models, and tables of made-up sentences.

Writes the folders ``bart``, ``mbart`` and ``llama`` with random weights and a tokenizer, and
``summaries.jsonl`` (document, summary), ``translations.jsonl`` (en, ro: Romanian words in
Romanian order, without its grammar) and ``instructions.jsonl`` (instruction, response). All follow
from the seed. Random weights show that a study runs; for texts that make sense, pretrain a model
(``python -m simulations.benchmarks.pretrain``) and name its folder with ``-s backbone=FOLDER``.

Example:
    python -m simulations.benchmarks.pretrain.sample --out build/sample
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import set_seed

from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from fedpeft.randomness import generator
from simulations.benchmarks.common import script
from simulations.benchmarks.pretrain.corpus import train_tokenizer
from simulations.benchmarks.pretrain.models import decoder, encoder_decoder, multilingual

MODELS = {"bart": encoder_decoder, "mbart": multilingual, "llama": decoder}
ROWS, _VOCABULARY, _LENGTH = 800, 600, 64
_ADJECTIVES = {"red": "roșu", "old": "bătrân", "small": "mic", "tall": "înalt", "young": "tânăr"}
_NOUNS = {"fox": "vulpe", "dog": "câine", "bear": "urs", "horse": "cal", "wolf": "lup"}
_VERBS = {"sees": "vede", "hears": "aude", "follows": "urmează", "knows": "știe"}
_PLACES = {"forest": "pădure", "garden": "grădină", "town": "oraș", "field": "câmp"}
_NUMBERS = ("no", "one", "two", "three", "four", "five")

_Row = dict[str, str]


def _pick(words: Sequence[str] | dict[str, str], draw: np.random.Generator) -> str:
    return [*words][draw.integers(len(words))]


def _words(draw: np.random.Generator) -> tuple[str, str, str, str, str]:
    """Return adjective, subject, verb, object and place of a sentence."""
    subject, other = _pick(_NOUNS, draw), _pick(_NOUNS, draw)
    return _pick(_ADJECTIVES, draw), subject, _pick(_VERBS, draw), other, _pick(_PLACES, draw)


def summary(draw: np.random.Generator) -> _Row:
    """Return a document of three sentences, and the core of the first."""
    rows = [_words(draw) for _ in range(3)]
    document = " ".join(f"The {a} {s} {v} a {o} in the {p}." for a, s, v, o, p in rows)
    _, subject, verb, other, _ = rows[0]
    return {"document": document, "summary": f"A {subject} {verb} a {other}."}


def translation(draw: np.random.Generator) -> _Row:
    """Return a sentence, and the words of its translation: the adjective follows its noun."""
    a, s, v, o, p = _words(draw)
    target = [_NOUNS[s], _ADJECTIVES[a], _VERBS[v], _NOUNS[o], "în", _PLACES[p]]
    return {"en": f"The {a} {s} {v} a {o} in the {p}.", "ro": " ".join(target) + "."}


def instruction(draw: np.random.Generator) -> _Row:
    """Return a request about a few words, and its answer."""
    words = [_pick(_NOUNS, draw) for _ in range(draw.integers(1, 6))]
    listed = " ".join(words)
    requests = {
        f"Repeat: {listed}": listed,
        f"Reverse: {listed}": " ".join(reversed(words)),
        f"Count: {listed}": _NUMBERS[len(words)],
    }
    request = _pick(requests, draw)
    return {"instruction": request, "response": requests[request]}


TABLES: dict[str, Callable[[np.random.Generator], _Row]] = {
    "summaries": summary,
    "translations": translation,
    "instructions": instruction,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the models and the tables.

    Raises:
        UserError: the folder exists.
    """
    parser = argparse.ArgumentParser(
        prog="python -m simulations.benchmarks.pretrain.sample",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    out: Path = options.out
    if out.exists():
        raise UserError(f"--out {out}: exists already; choose another")
    texts: list[str] = []
    for name, make in TABLES.items():
        draw = generator(options.seed, f"sample-{name}")
        rows = [make(draw) for _ in range(ROWS)]
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / f"{name}.jsonl", "".join(lines))
        texts += [text for row in rows for text in row.values()]
    tokenizer = train_tokenizer(texts, _VOCABULARY)
    for name, model in MODELS.items():
        set_seed(options.seed)
        model(tokenizer, _LENGTH).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
        print(f"written: {out / name}")


if __name__ == "__main__":
    script(main)
