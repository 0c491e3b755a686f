"""A fresh process without fedpeft runs the README of an export of each family and method."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import TEXTS, assert_predicts, code_of
from test_matrix import cells, run_of

from fedpeft.export import export
from fedpeft.predicting import predict
from fedpeft.tasks import Examples
from fedpeft.trained import Trained

#: Runs the code of every README in its own folder, and prints what it prints and its outputs.
SCRIPT = """
import contextlib, io, json, os, sys
folders, codes, texts = json.load(sys.stdin)
answers = []
for folder, code in zip(folders, codes):
    os.chdir(folder)
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    answers.append([printed.getvalue(), [names["outputs"](text).tolist() for text in texts]])
print(json.dumps(answers))
sys.exit("fedpeft" in sys.modules)
"""


def answered(folders: list[Path]) -> list[tuple[str, list[Any]]]:
    """Return what each README prints and the outputs of its code for our texts."""
    given = json.dumps(
        [[str(each) for each in folders], [code_of(each) for each in folders], TEXTS]
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=given,
        capture_output=True,
        text=True,
        cwd="/",
        env={**clean, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[tuple[str, list[Any]]] = json.loads(done.stdout)
    return answers


def runs(kind: Any, path: Path) -> dict[str, Trained]:
    """Return a run of every family, and one of every method, that a format can express."""
    first = "slash" if kind == "onnx" else "lora"
    every = dict(cells(kind, [first, "bitfit"])[::-1])
    made = {family: run_of(path / family, family, name) for family, name in every.items()}
    for name in {name for _, name in cells(kind)} - {first}:
        made[name] = run_of(path / name, "bert", name)
    return made


@pytest.mark.long
@pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning", "ignore:.*zero-element:UserWarning"
)
@pytest.mark.parametrize("kind", ["hf", "peft", "onnx"])
def test_readmes_of_every_family_and_method(kind: Any, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors"
    vectors.mkdir()
    made = runs(kind, vectors)
    for name, trained in made.items():
        export(trained, kind, tmp_path / name)
    answers = answered([tmp_path / name for name in made])
    for trained, (printed, outputs) in zip(made.values(), answers, strict=True):
        assert_predicts([np.array(row) for row in outputs], trained)
        (expected,) = predict(trained, Examples(["a good film"], None, np.zeros(1)))
        assert printed == f"{expected.value}\n"
