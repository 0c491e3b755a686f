"""transformers' own pipelines on an export give the labels of predict, or fail loudly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exports import READINGS, TEXTS
from finished import made_up, method, saved_family, small
from models import SMALL
from transformers import pipeline

from fedpeft.backbones.families import FAMILIES
from fedpeft.export import export
from fedpeft.export.heads import head_of
from fedpeft.export.plain import REFUSAL
from fedpeft.predicting import predict
from fedpeft.tasks import Examples
from fedpeft.tasks.base import tag_column
from fedpeft.trained import Trained

pytestmark = pytest.mark.filterwarnings("ignore:.*zero-element:UserWarning")


def exported(path: Path, family: str, reading: str) -> Trained:
    """Return a run that never was on a small backbone of a family; export it to path / "hf"."""
    common = (*READINGS[reading], f"backbone={saved_family(family)}", "task.max_length=40")
    experiment = small(*common, *method("linear", SMALL["linear"]))
    trained = Trained.read(made_up(path / "vector", experiment, 0.3))
    export(trained, "hf", path / "hf")
    return trained


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_are_those_of_predict(family: str, tmp_path: Path) -> None:
    """One word at a time: the pipeline has no words, and predict takes a word's first token."""
    trained = exported(tmp_path, family, "tags")
    tag = pipeline("token-classification", str(tmp_path / "hf"), device="cpu", ignore_labels=[])
    words = ["film", "soup", "market"]
    if head_of(trained) is None:
        # Of the pipeline itself: a model of no tags, or of no classes, has no logits for it.
        with pytest.raises((KeyError, ValueError), match=r"logits|zero-size"):
            tag(words)
        return
    rows = [[word] for word in words]
    expected = predict(trained, Examples(rows, None, tag_column(range(1) for _ in rows)))
    said = [tokens[0]["entity"] for tokens in tag(words)]
    assert said == [prediction.value[0] for prediction in expected]  # type: ignore[index]


@pytest.mark.parametrize("reading", ["mean-pair", "mask", "unit", "score-mean"])
def test_a_head_in_another_file_is_refused(reading: str, tmp_path: Path) -> None:
    trained = exported(tmp_path, "bert", reading)
    assert head_of(trained) is None
    for task in ("text-classification", "sentiment-analysis"):
        with pytest.raises(ValueError, match=REFUSAL):
            pipeline(task, str(tmp_path / "hf"), device="cpu")(TEXTS)


def test_a_score_is_that_of_predict(tmp_path: Path) -> None:
    trained = exported(tmp_path, "bert", "score-cls")
    pairs = Examples(TEXTS, TEXTS[::-1], np.zeros(len(TEXTS)))
    expected = [prediction.value for prediction in predict(trained, pairs)]
    score = pipeline("text-classification", str(tmp_path / "hf"), device="cpu")
    given = [{"text": one, "text_pair": two} for one, two in zip(TEXTS, TEXTS[::-1], strict=True)]
    assert [each["score"] for each in score(given)] == pytest.approx(expected, abs=1e-5)
