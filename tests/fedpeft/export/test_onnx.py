"""An ONNX model predicts in onnxruntime what the run predicts, and takes other runs' vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exports import (
    PAIRS,
    READINGS,
    TEXTS,
    assert_predicts,
    examples_for,
    expected_of,
    said_by_readme,
)
from finished import finished_run, made_up, method, small
from models import SMALL

from fedpeft.errors import UserError
from fedpeft.export import export
from fedpeft.predicting import encode_texts
from fedpeft.trained import Trained
from fedpeft.training import outputs_of

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
SLASH = method("slash", SMALL["slash"])


def exported(folder: Path, *settings: str, scale: float = 0.3) -> tuple[Trained, Path]:
    """Return a run that never was, and its export."""
    trained = Trained.read(made_up(folder / "vector", small(*settings), scale))
    export(trained, "onnx", folder / "out")
    return trained, folder / "out"


@pytest.mark.long
@pytest.mark.parametrize("reading", ["mask-pair", "score-mean", "tags"])
def test_the_readme_predicts_as_the_run(
    reading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, out = exported(tmp_path, *READINGS[reading], *SLASH)
    assert_predicts(said_by_readme(out, trained, monkeypatch), trained)


@pytest.mark.slow
def test_texts_of_different_vectors_share_a_batch(tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    trained, out = exported(tmp_path, *READINGS["cls-pair"], *SLASH)
    session = InferenceSession(out / "model.onnx")
    draw = np.random.default_rng(0)
    vectors = draw.normal(0, 0.5, (len(TEXTS), len(trained.vector))).astype(np.float32)
    encoded = encode_texts(trained, examples_for(trained))
    batch = trained.model.collate([encoded], [np.arange(len(PAIRS))])
    feeds = {
        "input_ids": batch.input_ids.numpy(),
        "attention_mask": batch.attention_mask.numpy(),
        "token_type_ids": batch.token_type_ids.numpy(),
        "vectors": vectors,
    }
    names = [given.name for given in session.get_inputs()]
    (outputs,) = session.run(None, {name: feeds[name] for name in names})
    alone = [outputs_of(trained.model, vector, encoded)[i] for i, vector in enumerate(vectors)]
    np.testing.assert_allclose(outputs, alone, rtol=0, atol=1e-5)
    assert np.abs(outputs - np.array(expected_of(trained))).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("full", "changes whole weights, which cannot be an input"),
        ("said", "changes whole weights, which cannot be an input"),
        ("prefix", "cannot be exported with any number of texts"),
    ],
)
def test_other_methods_are_refused(name: str, words: str, tmp_path: Path) -> None:
    trained = Trained.read(finished_run(*method(name, SMALL[name])))
    with pytest.raises(UserError, match=f"method '{name}' {words}"):
        export(trained, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()
