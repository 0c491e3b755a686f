"""The benchmark beside table 5: both sides train the same, or there is no figure."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.benchmarks import table5
from simulations.benchmarks.parts import random_roberta, table5_loop
from simulations.benchmarks.parts.plain_modules import METHODS

OPTIONS = Namespace(
    size="tiny", batch=4, tokens=16, threads=1, device="cpu", autocast="off", repeats=4
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("backbone")
    random_roberta.save_backbone("tiny", path)
    return str(path)


@pytest.mark.parametrize("name", table5_loop.LOOPS)
def test_both_sides_train_the_same(name: str, folder: str) -> None:
    ours, other = table5.time_method(name, folder, OPTIONS)
    assert len(ours) == len(other) == OPTIONS.repeats
    assert min(*ours, *other) > 0


@pytest.mark.parametrize("name", ["slash", "lora"])
def test_a_loop_that_trains_something_else_is_refused(
    name: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(table5_loop.LOOPS, name, METHODS["linear"])
    with pytest.raises(SystemExit, match=rf"{name}: losses are .*: not the same"):
        table5.time_method(name, folder, OPTIONS)


def test_texts_have_one_length_and_fill_the_steps() -> None:
    texts = random_roberta.texts_of(OPTIONS)
    assert set(texts.lengths) == {OPTIONS.tokens}
    assert len(texts) == random_roberta.STEPS * OPTIONS.batch


def test_the_papers_numbers_are_those_of_the_reference() -> None:
    path = Path(__file__).resolve().parents[4] / "shared" / "reference" / "results.json"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    names = {"finetuning": "full", "lora_r1": "lora", "adapter_m1": "houlsby", "bitfit": "bitfit"}
    rows = json.loads(path.read_text())["table5_time_memory_qnli_1epoch_bs8_rtx8000"]
    for size, paper in table5.PAPER.items():
        slash = f"slash_d{random_roberta.SIZES[size][-1]}"
        found = {
            (names | {slash: "slash"}).get(row["method"]): (row["seconds"], row["gb"])
            for row in rows[f"roberta-{size}"]
        }
        assert paper == {name: each for name, each in found.items() if name}
    assert table5.share(table5.PAPER["base"], "slash", 0) == pytest.approx(558 / 1227, abs=1e-3)
    assert table5.share(table5.PAPER["base"], "jr_warp", 0) == "-"


@pytest.mark.slow
def test_it_is_recorded(tmp_path: Path, kept: Callable[..., object]) -> None:
    sizes = ["--sizes", "tiny", "--methods", "slash", "--batch", "2", "--tokens", "8"]
    options = ["--threads", "1", "--repeats", "1", "--results", str(tmp_path)]
    (report,) = table5.main([*sizes, *options])
    kept(report, "table5", "roberta-tiny, cpu, autocast off")
    full, slash = report.table
    assert [full["figure"], slash["figure"]] == ["full", "slash"]
    assert full["MB of full"] == 1 > slash["MB of full"]
    assert full["of full"] == pytest.approx(1, abs=0.01)
    assert report.facts["CUDA"] == "not measured"
