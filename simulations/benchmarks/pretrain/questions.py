"""Write pairs of a sentence and a question that it answers, from GLUE's QNLI.

Writes ``train.jsonl`` and ``dev.jsonl`` with the columns ``sentence`` and ``question``: the rows of
QNLI's files that are labeled ``entailment``, in their order. The texts belong to others: keep them
where GLUE may be kept.

Example:
    python -m simulations.benchmarks.pretrain.questions --glue ../shared/data/glue --out
    build/questions
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from fedpeft.tasks.readers import Columns, check_columns, read_table
from simulations.benchmarks.common import script

_QUESTION, _SENTENCE, _LABEL = "sentence1", "sentence2", "label"


def pairs(path: Path) -> list[dict[str, str]]:
    """Return sentence and question of each row of a QNLI file whose sentence answers its question.

    Raises:
        UserError: not a table, a column is missing, or no such row.
    """
    table = read_table(path)
    check_columns(table, path, Columns(_SENTENCE, _LABEL, _QUESTION))
    labels = enumerate(table.columns[_LABEL])
    answered = table.select([row for row, label in labels if label == "entailment"]).columns
    if not answered[_LABEL]:
        raise UserError(f"{path}: no row with label 'entailment'; expected QNLI's file of GLUE")
    texts = zip(answered[_SENTENCE], answered[_QUESTION], strict=True)
    return [{"sentence": sentence, "question": question} for sentence, question in texts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables.

    Raises:
        UserError: the folder exists, or a file of QNLI cannot be read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m simulations.benchmarks.pretrain.questions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--glue", type=Path, required=True, help="folder with QNLI in it")
    parser.add_argument("--out", type=Path, required=True, help="new folder")
    options = parser.parse_args(arguments)
    out: Path = options.out
    if out.exists():
        raise UserError(f"--out {out}: exists already; choose another")
    tables = {name: pairs(options.glue / "QNLI" / f"{name}.tsv") for name in ("train", "dev")}
    out.mkdir(parents=True)
    for name, rows in tables.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        write_atomic(out / f"{name}.jsonl", "".join(lines))
        print(f"written: {out / name}.jsonl, {len(rows):,} pairs")


if __name__ == "__main__":
    script(main)
