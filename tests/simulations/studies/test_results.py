"""What is committed in simulations/studies/results is of the studies as they stand, and whole."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pytest

from simulations.study.cells import axes_of, combinations
from simulations.study.file import read

STUDIES = Path(__file__).resolve().parents[3] / "simulations" / "studies"
RESULTS = sorted(path for path in (STUDIES / "results").iterdir() if path.is_dir())
SEARCHED = [path for path in RESULTS if read(STUDIES / f"{path.name}.toml")[0].search]


#: Its bisection runs only the cells that it needs.
BISECTED = "d90"


@pytest.mark.parametrize("folder", RESULTS, ids=lambda path: path.name)
def test_results_belong_to_the_current_study_file(folder: Path) -> None:
    study, text = read(STUDIES / f"{folder.name}.toml")
    assert (folder / "study.toml").read_text() == text
    table = pd.read_parquet(folder / "table.parquet")
    labels = {name: str for name in table if name.startswith("axis.")}  # some look like numbers
    written = pd.read_csv(folder / "table.csv", dtype=labels)
    assert table.equals(written.astype(table.dtypes))
    asked = {
        tuple(label for choice in chosen.values() for label in choice.labels.values())
        for chosen in combinations(axes_of(study))
    }
    axes = [name for axis in axes_of(study) for name in axis.choices[0].labels]
    last = table[table["last"]]
    ran = {*last[[f"axis.{name}" for name in axes]].itertuples(index=False, name=None)}
    assert ran == asked or (folder.name == BISECTED and ran < asked)
    assert len(last) == len(ran) and (last["round"] == last["rounds"]).all()
    assert last["score"].notna().all()


@pytest.mark.parametrize("folder", SEARCHED, ids=lambda path: path.name)
def test_cells_have_the_settings_that_the_search_chose(folder: Path) -> None:
    table = pd.read_parquet(folder / "table.parquet")
    labels = {
        axis.name: [f"axis.{name}" for name in axis.choices[0].labels]
        for axis in axes_of(read(STUDIES / f"{folder.name}.toml")[0])
    }
    bests = json.loads((folder / "best.json").read_text())
    columns = [name for axis in bests[0]["axes"] for name in labels[axis]]
    rates: dict[str, set[float]] = defaultdict(set)
    for *chosen, rate in table[[*columns, "lr"]].itertuples(index=False, name=None):
        rates[" · ".join(map(str, chosen))].add(rate)
    for best in bests:
        # The table has no column for other settings, as the server's learning rate.
        found, rate = rates[" · ".join(best["axes"].values())], best["values"].get("local.lr")
        assert found == {rate} if rate is not None else found


@pytest.mark.parametrize("folder", RESULTS, ids=lambda path: path.name)
def test_reports_are_committed_without_their_runs(folder: Path) -> None:
    assert (folder / "report.html").stat().st_size > 10_000
    assert len([*(folder / "figures").glob("*.svg")]) == len([*(folder / "figures").glob("*.png")])
    assert not [path for path in folder.iterdir() if path.name in ("cells", "trials")]
