"""The benchmark against numbers of clients and lengths of vectors, run small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulations.benchmarks import scaling


def test_both_parts_are_recorded(tmp_path: Path, kept: Callable[..., object]) -> None:
    options = ["--sizes", "3", "12", "--vectors", "16", "200", "--repeats", "2"]
    clients, vectors = scaling.main([*options, "--results", str(tmp_path)])
    kept(clients, "scaling", "clients")
    kept(vectors, "scaling", "vectors")
    assert [(row["clients"], row["asked"]) for row in clients.table] == [(3, 3), (12, 12), (12, 10)]
    assert [row["P"] for row in vectors.table] == [16 + 66, 200 + 66]
    assert clients.table[0]["ratio"] == vectors.table[0]["ratio"] == 1
    assert all(len(seconds) == 2 for seconds in clients.raw.values())
    for row in clients.table:
        each = 1e3 / row["rounds a second"] / row["asked"]
        assert abs(row["ms a client"] - each) < 0.05 * each
