"""The tuned encoder in sentence-transformers gives what the run's head reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from exports import TEXTS
from finished import made_up, method, saved_backbone, small
from models import SMALL
from sentence_transformers import SentenceTransformer

from fedpeft.backbones.sentences import made_to_read
from fedpeft.errors import UserError
from fedpeft.export import export
from fedpeft.tasks.base import Examples
from fedpeft.tasks.encoding import encode
from fedpeft.trained import Trained

CASES = [
    ("slash", "unit", "tiny", "joint"),
    ("slash", "unit", "bert", "apart"),
    ("lora", "mean", "tiny", "apart"),
    ("bitfit", "cls", "bert", "joint"),
]


def made(path: Path, name: str, *settings: str) -> Trained:
    common = ["task.name=synthetic/inference", "task.max_length=12"]
    return Trained.read(made_up(path, small(*common, *settings, *method(name, SMALL[name])), 0.3))


def read_by_head(trained: Trained, texts: list[str]) -> np.ndarray:
    """Return the representation of each text, one at a time, before it is scaled."""
    model, rows = trained.model, []
    vectors = torch.as_tensor(trained.vector)[None]
    for text in texts:
        examples = Examples([text], None, np.zeros(1))
        data = encode(examples, model.backbone.tokenizer, trained.reads, 12)
        with torch.no_grad():
            batch = model.collate([data], [np.arange(1)])
            states, _ = model.hidden_states(model.realise(vectors).modifications, batch)
        rows.append((states[0, 0] if trained.reads == "cls" else states[0].mean(0)).numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("name", "reads", "backbone", "pairs"), CASES)
def test_embeddings_are_what_the_head_reads(
    name: str, reads: str, backbone: str, pairs: str, tmp_path: Path
) -> None:
    folder = backbone if backbone == "tiny" else str(saved_backbone(backbone))
    settings = [f"backbone={folder}", f"representation={reads}", f"task.pairs={pairs}"]
    trained = made(tmp_path / "vector", name, *settings)
    out = tmp_path / "encoder"
    export(trained, "sentence-transformers", out)
    assert made_to_read(str(out)) == reads
    embeddings = SentenceTransformer(str(out), device="cpu").encode(TEXTS)
    expected = read_by_head(trained, TEXTS)
    if reads == "unit":
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=2e-6)


def test_a_run_that_reads_no_whole_texts_is_refused(tmp_path: Path) -> None:
    trained = made(tmp_path / "vector", "slash", "representation=mask")
    with pytest.raises(UserError, match="it pools whole texts, and this run reads 'mask'"):
        export(trained, "sentence-transformers", tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()


def test_the_steps_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    export(
        made(tmp_path / "vector", "slash", "representation=unit"),
        "sentence-transformers",
        tmp_path / "out",
    )
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [module["type"].rsplit(".", 1)[-1] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
