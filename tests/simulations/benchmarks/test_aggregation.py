"""The benchmark of the server's path from replies to the next vector, with few replies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from simulations.benchmarks import aggregation
from simulations.benchmarks.common import APART
from simulations.benchmarks.parts.answering import AT_ONCE

SIZE = 50


def run(side: Callable[[list[str]], None], clients: int, out: Path) -> np.ndarray:
    side([str(clients), str(SIZE), str(out)])
    return np.load(out / "vector.npy")


@pytest.mark.parametrize("clients", [1, 7, AT_ONCE + 3])
def test_both_sides_make_the_mean_of_all_vectors(clients: int, tmp_path: Path) -> None:
    vectors = np.array([*aggregation.vectors_of(clients, SIZE)])
    assert vectors.shape == (clients, SIZE) and vectors.dtype == "float32"
    for side in (aggregation.server_process, aggregation.bare_process):
        found = run(side, clients, tmp_path / side.__name__)
        np.testing.assert_allclose(found, vectors.mean(0), rtol=0, atol=1e-6)


def test_the_servers_parts_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(aggregation.server_process, 30, tmp_path / "run")
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    parts = ("counting s", "checking s", "strategy s")
    assert found["aggregation s"] == pytest.approx(sum(found[part] for part in parts))
    assert all(0 < found[part] < 10 for part in (*parts, "a question s", "parsing s"))
    assert found["memory MB"] >= 0


@pytest.mark.slow
def test_it_is_recorded(tmp_path: Path, kept: Callable[..., object]) -> None:
    options = ["--clients", "40", "--repeats", "2", "--results", str(tmp_path)]
    report = aggregation.main(options)
    kept(report, "aggregation", "40 clients")
    assert [row["figure"] for row in report.table] == [*aggregation.TARGETS]
    assert {row["at most"] for row in report.table} == {"-"}  # they are for 10,000
    assert report.facts[APART] < aggregation.SAME


@pytest.mark.slow
def test_other_vectors_make_it_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {"server_process": "server_process", "bare_process": "server_process"}
    alone = aggregation.in_process

    def fewer(side, options, out):  # type: ignore[no-untyped-def]
        options.clients = 5 if side == "bare_process" else 6
        return alone(sides[side], options, out)

    monkeypatch.setattr(aggregation, "in_process", fewer)
    with pytest.raises(SystemExit, match="apart from the mean"):
        aggregation.main(["--repeats", "1", "--results", str(tmp_path)])
    assert not [*tmp_path.iterdir()]
