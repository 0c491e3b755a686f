"""Mixed batches predict as each run alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from endpoints import assert_equal_predictions, catalog_of, numbers_of
from exports import READINGS, examples_for
from finished import made_up, method, small
from models import GROUPED, SMALL

from deployment.serving.catalog import Catalog, Entry, open_catalog
from deployment.serving.engine import Engine, Item
from fedpeft.errors import RunFailed
from fedpeft.runs.predicting import Prediction, predict
from fedpeft.runs.trained import Trained
from fedpeft.tasks import Examples

TEXTS = ["the film last night was truly wonderful", "no", "i thought, the soup was hardly good!"]


def vectors(folder: Path, settings: dict[str, list[str]]) -> tuple[Catalog, dict[str, Path]]:
    """Return a catalog of random vectors with the settings, and their files."""
    paths = {
        name: made_up(folder / f"{name}.safetensors", small(*chosen), 0.2)
        for name, chosen in settings.items()
    }
    catalog = open_catalog(next(iter(paths.values())), most=1000)
    for name, path in paths.items():
        catalog.add(name, path)
    return catalog, paths


def items_for(entry: Entry, examples: Examples) -> list[Item]:
    pairs = examples.text_pair or [None] * len(examples)
    return [Item(entry, *both) for both in zip(examples.text, pairs, strict=True)]


@pytest.mark.parametrize("name", GROUPED)
def test_a_mixed_batch_predicts_as_each_run_alone(name: str, tmp_path: Path) -> None:
    """Texts of classes, scores and tags, single and paired, of one method, in random order."""
    apart = ("task.name=synthetic/inference", "representation=mean", "task.pairs=apart")
    readings = {**READINGS, "apart": (*apart, "task.max_length=10")}
    settings = {
        reading: [*given, *method(name, SMALL[name])] for reading, given in readings.items()
    }
    catalog, paths = vectors(tmp_path, settings)
    items: list[Item] = []
    expected: list[Prediction] = []
    for reading, path in paths.items():
        trained = Trained.read(path)
        examples = examples_for(trained)
        items += items_for(catalog[reading], examples)
        expected += predict(trained, examples)
    order = np.random.default_rng(1).permutation(len(items))
    answers = Engine(catalog.setups, 1 << 20, most=8).answer([items[i] for i in order])
    for place, answer in zip(order, answers, strict=True):
        assert isinstance(answer, Prediction)
        assert_equal_predictions(answer, expected[place])


def test_methods_and_seeds_do_not_mix(tmp_path: Path) -> None:
    slash = method("slash", SMALL["slash"])
    settings = {
        "zero": slash,
        "one": [*slash, "seed=1"],
        "lora": method("lora", SMALL["lora"]),
        "bfloat16": [*slash, "engine.autocast=bfloat16"],
    }
    catalog, paths = vectors(tmp_path, settings)
    families = {catalog[name].setup.family for name in settings}
    assert len(families) == 4
    items = [Item(catalog[name], text) for text in TEXTS for name in settings]
    answers = Engine(catalog.setups, 1 << 20, most=64).answer(items)
    for place, name in enumerate(settings):
        alone = predict(Trained.read(paths[name]), Examples(TEXTS, None, np.zeros(3)))
        for answer, expected in zip(answers[place :: len(settings)], alone, strict=True):
            assert isinstance(answer, Prediction)
            near = 0.02 if name == "bfloat16" else 1e-5  # batches of another shape round otherwise
            np.testing.assert_allclose(numbers_of(answer), numbers_of(expected), rtol=0, atol=near)


def test_each_vector_of_many_changes_its_own_text(tmp_path: Path) -> None:
    catalog, _ = vectors(tmp_path, {"first": method("slash", SMALL["slash"])})
    first, draw = catalog["first"], np.random.default_rng(3)
    entries = [
        Entry(f"v{i}", draw.normal(0, 1, len(first.vector)).astype(np.float32), first.setup, "")
        for i in range(40)
    ]
    engine = Engine(catalog.setups, 1 << 20, most=16)
    together = engine.answer([Item(entry, TEXTS[0]) for entry in entries])
    alone = [engine.answer([Item(entry, TEXTS[0])])[0] for entry in entries]
    shares = []
    for one, other in zip(together, alone, strict=True):
        assert isinstance(one, Prediction) and isinstance(other, Prediction)
        assert_equal_predictions(one, other)
        shares.append(tuple(numbers_of(one).round(4)))
    assert len(set(shares)) > 20, "the vectors predict alike, so this test shows nothing"


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_realised_vectors_are_kept_up_to_the_limit(kept: int) -> None:
    catalog = catalog_of("sentiment", "inference", "similarity")
    items = [Item(catalog["sentiment"], TEXTS[0])] * 2
    items += [Item(catalog[name], TEXTS[0], TEXTS[1]) for name in ("inference", "similarity")]
    setups = [item.entry.setup for item in items[1:]]
    sizes = [4 * (s.family.size + s.head.classes * (s.head.width + 1)) for s in setups]
    engine = Engine(catalog.setups, sum(sizes[-kept:]) if kept else 0, most=8)
    for turn in range(1, 4):
        engine.answer(items)
        assert engine.rows.size <= sum(sizes)
        assert (engine.rows.hits + engine.rows.misses) == 3 * turn
    assert (engine.rows.hits == 6) is (kept == 3)
    assert (engine.rows.size == 0) is (kept == 0)
    engine.rows.forget(catalog["similarity"])
    engine.rows.forget(catalog["similarity"])
    assert engine.rows.size == (sum(sizes[:2]) if kept == 3 else 0)


def test_an_output_that_is_not_finite_fails_only_its_text(tmp_path: Path) -> None:
    catalog, _ = vectors(tmp_path, {"good": method("slash", SMALL["slash"])})
    good = catalog["good"]
    bad = Entry("bad", np.full_like(good.vector, 1e38), good.setup, "")
    answers = Engine(catalog.setups, 1 << 20, most=8).answer(
        [Item(good, TEXTS[0]), Item(bad, TEXTS[0]), Item(good, TEXTS[1])]
    )
    assert [type(answer) for answer in answers] == [Prediction, RunFailed, Prediction]
    assert str(answers[1]) == "vector 'bad': an output is not finite"


def test_passes_leave_the_backbone_as_it_was() -> None:
    catalog = catalog_of("sentiment", "lora")
    model = catalog.setups.backbone.model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    engine = Engine(catalog.setups, 1 << 20, most=8)
    engine.answer([Item(catalog["sentiment"], TEXTS[0]), Item(catalog["lora"], TEXTS[1])])
    assert all(torch.equal(before[name], w) for name, w in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
