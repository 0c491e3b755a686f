"""The served vectors: what fits, what is refused, and what is freed."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from endpoints import RUNS, catalog_of, run_folder
from finished import finished_run, made_up, method, saved_backbone, small
from models import SMALL

from deployment.serving.catalog import open_catalog, sources
from fedpeft.errors import UserError
from fedpeft.runs.vectorfile import read_vector, vector_bytes

VECTOR = "vector.safetensors"


def test_vectors_of_equal_descriptions_share_everything() -> None:
    catalog = catalog_of("sentiment", "inference")
    content = (run_folder("sentiment") / VECTOR).read_bytes()
    other, replaced = catalog.receive("other", content)
    assert replaced is None and other.setup is catalog["sentiment"].setup
    assert other.setup is not catalog["inference"].setup
    assert other.setup.family is catalog["inference"].setup.family
    assert catalog.names() == ["inference", "other", "sentiment"]
    again, replaced = catalog.receive("other", content)
    assert replaced is other and catalog["other"] is again


def test_what_the_last_vector_used_is_freed() -> None:
    catalog = catalog_of("sentiment", "lora")
    family = weakref.ref(catalog["lora"].setup.family)
    catalog.remove("lora")
    gc.collect()
    assert family() is None
    with pytest.raises(KeyError):
        catalog.remove("lora")
    catalog.add("lora", run_folder("lora"))


def test_a_vector_of_another_backbone_is_refused(tmp_path: Path) -> None:
    """Its backbone's name, which may be any hub name, is not looked up."""
    path = made_up(tmp_path / "v", small("backbone=minilm", *method("slash", SMALL["slash"])))
    catalog = catalog_of("sentiment")
    with pytest.raises(UserError, match=r"another backbone \('minilm'\) than the served 'tiny'"):
        catalog.add("other", path)
    vector, about = read_vector(run_folder("sentiment") / VECTOR)
    renamed = {**about, "experiment": about["experiment"].replace('"tiny"', '"no/such-model"')}
    assert renamed != about
    entry, _ = catalog.receive("renamed", vector_bytes(vector, renamed))  # the same weights
    assert entry.setup.family is catalog["sentiment"].setup.family


def test_the_same_backbone_in_a_folder_is_accepted(tmp_path: Path) -> None:
    elsewhere = small(f"backbone={saved_backbone('tiny')}", *method("slash", SMALL["slash"]))
    path = made_up(tmp_path / "v", elsewhere)
    catalog = catalog_of("sentiment")
    entry, _ = catalog.add("folder", path)
    assert entry.setup.family is catalog["sentiment"].setup.family


@pytest.mark.parametrize("name", ["full", "said"])
def test_methods_of_whole_weights_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"method '{name}' changes whole weights"):
        catalog_of("sentiment").add("x", finished_run(*method(name, SMALL[name])))


def changed(**values: Any) -> bytes:
    vector, about = read_vector(run_folder("sentiment") / VECTOR)
    return vector_bytes(vector, {**about, **values})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "'new' is not a fedpeft vector"),
        (b"\x80\x04.", "'new' is not a fedpeft vector"),
        (b"\xff" * 100, "'new' is not a fedpeft vector"),
        (changed(kind="x"), "'new' is not a fedpeft vector: its metadata has no valid kind 'x'"),
        (changed(experiment="x = 1"), "'new': its experiment is invalid here: unknown key 'x'"),
        (changed(parameters=[["z", [9]]], digests={"backbone": "?"}), "no valid 'layout'"),
    ],
)
def test_damaged_files_are_refused_by_name(content: bytes, words: str) -> None:
    catalog = catalog_of("sentiment")
    with pytest.raises(UserError) as caught:
        catalog.receive("new", content)
    assert words in str(caught.value) and "/" not in str(caught.value).split("(")[0]
    assert catalog.names() == ["sentiment"]


def test_numbers_that_are_not_finite_are_refused() -> None:
    vector, about = read_vector(run_folder("sentiment") / VECTOR)
    with pytest.raises(UserError, match="'new': 78 of 78 numbers are NaN or infinite"):
        catalog_of("sentiment").receive("new", vector_bytes(vector * np.nan, about))


@pytest.mark.parametrize("name", ["", ".", "../x", "a b", "ä", "x" * 101, "a/b", "-x"])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="is not a valid name of a vector"):
        catalog_of("sentiment").receive(name, b"")


def test_there_are_at_most_so_many_vectors() -> None:
    catalog = open_catalog(run_folder("sentiment"), most=1)
    catalog.add("one", run_folder("sentiment"))
    catalog.add("one", run_folder("sentiment"))
    with pytest.raises(UserError, match="'two': 1 vectors are served, the most that --max-vectors"):
        catalog.add("two", run_folder("sentiment"))


def test_sources_of_a_command_line(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / VECTOR).touch()
    (tmp_path / "runs" / "loose.safetensors").touch()
    (tmp_path / "runs" / "notes.txt").touch()
    runs = tmp_path / "runs"
    assert sources([str(runs)]) == {
        "loose": runs / "loose.safetensors",
        "one": runs / "one",
        "two": runs / "two",
    }
    assert sources([f"news={runs / 'one'}", str(runs / "two" / VECTOR)]) == {
        "news": runs / "one",
        "two": runs / "two" / VECTOR,
    }
    with pytest.raises(UserError, match="have the same name; choose with NAME=PATH"):
        sources([str(runs), str(runs / "one")])
    assert sources(["missing"]) == {"missing": Path("missing")}  # reported when it is read


def test_a_folder_without_a_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no run"):
        open_catalog(tmp_path, most=1)
    assert set(RUNS) >= {"sentiment", "lora"}
