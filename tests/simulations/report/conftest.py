"""A small study, run once, and a factory of tables."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from small_studies import here

from simulations.study.display import StudyDisplay
from simulations.study.execution import run_study
from simulations.study.file import parse
from simulations.study.folder import StudyFolder
from simulations.study.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

EVIL = "<script>document.title = 'broken'</script> & $x$"
STUDY = f"""
title = "Small <b>study</b>"
about = "What is asked.\\n\\nA second paragraph with <i>signs</i>."
[base]
backbone = "tiny"
task.train_limit = 60
task.eval_limit = 40
federation.clients = 3
federation.rounds = 3
engine.threads = 1
[axes]
seed = [0, 1]
task = [
  {{ label = "feeling", task.name = "synthetic/sentiment" }},
  {{ label = "likeness", task.name = "synthetic/similarity" }},
]
method = [
  {{ label = "linear", method.name = "linear" }},
  {{ label = "{EVIL}", method.name = "slash", method.d = 64 }},
  {{ label = "refused", method.name = "slash", method.d = 8, federation.max_update_norm = 1e-9 }},
]
[report]
targets = {{ feeling = 0.01, likeness = 2.0 }}
[[published]]
source = "a paper, Table 1"
where = {{ task = "feeling", method = "linear" }}
score = 99.125
"""


@pytest.fixture
def evil() -> str:
    """The label of the second method."""
    return EVIL


@pytest.fixture(scope="session")
def finished_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study with eight finished and four failed cells; read-only."""
    path = tmp_path_factory.mktemp("studies") / "small"
    folder = StudyFolder.create(path, STUDY, resume=False)
    console = Console(file=io.StringIO())
    with StudyDisplay(folder, console) as display:
        outcomes = run_study(folder, Plan(parse(STUDY)), here, display)
    assert (len(outcomes.finished), len(outcomes.failed)) == (8, 4)
    return path


@pytest.fixture
def study(finished_study: Path, tmp_path: Path) -> Path:
    """A copy of the finished study."""
    return Path(shutil.copytree(finished_study, tmp_path / "study"))


Rows = Sequence[tuple[str, str, int, list[float | None]]]


@pytest.fixture
def table() -> Callable[..., pd.DataFrame]:
    """Return a factory of a study's table from (task, method, seed, score of each round).

    Both clients send 100 bytes per round, times ``sizes[method]`` if given.
    """
    import pandas as pd

    def make(rows: Rows, sizes: dict[str, int] | None = None) -> pd.DataFrame:
        return pd.DataFrame(
            [
                {
                    "axis.seed": str(seed),
                    "axis.task": task,
                    "axis.method": method,
                    "cell": f"{task}-{method}-{seed}",
                    "task": task.lower(),
                    "method": method,
                    "seed": seed,
                    "clients": 2,
                    "round": number,
                    "metric": "accuracy",
                    "score": score,
                    "target_epsilon": None,
                    "privacy": "none",
                    "epsilon": None,
                    "alpha": None,
                    "sent_up_payload": 200 * number * (sizes or {}).get(method, 1),
                    "sent_up_message": 300 * number,
                    "sent_down_message": 400 * number,
                }
                for task, method, seed, scores in rows
                for number, score in enumerate(scores, 1)
            ]
        )

    return make
