"""Committed tables and pictures of the documentation agree with the results that they show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import generate


@pytest.mark.parametrize("page", generate.COMMITTED, ids=lambda page: page.stem)
def test_generated_parts_are_those_of_the_code_and_the_results(page) -> None:
    text = page.read_text("utf-8")
    assert text == generate.fill(text), "run `python docs/generate.py --update`"


def test_every_reference_page_is_generated_or_an_index() -> None:
    pages = {page.name for page in (ROOT / "docs" / "reference").glob("*.md")}
    generated = {page.name for page in generate.COMMITTED}
    assert pages - generated == {"index.md"}


def test_the_python_reference_has_signatures_members_and_docstrings() -> None:
    text = generate.fill("<!-- generated: api simulations.api.Result -->\n<!-- end -->")
    assert "### `simulations.api.Result`" in text and "    Attributes:\n" in text
    assert "    @property\n    def score(self) -> float | None:\n" in text
    assert "        texts: pd.DataFrame | Sequence[str] | str | Path,\n" in text
    chosen = generate.api.api("fedpeft.experiment.config.Experiment:read,of")
    assert chosen.count("    @classmethod\n    def ") == 2


def test_the_readmes_table_is_that_of_the_study_of_frozen_backbones() -> None:
    assert generate.heads.frozen() in (ROOT / "README.md").read_text("utf-8")


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == set(re.findall(r"[\w/.-]+\.md\b", navigation))


def test_settings_reference_has_every_key_with_its_default() -> None:
    table = generate.reference.settings()
    assert "| `federation.clients` | `10` | integer |" in table
    assert '| `engine.kind` | `"local"` |' in table
    assert "| `privacy.epsilon` |  | number |" in table


def test_command_reference_has_options_of_subcommands() -> None:
    text = generate.reference.commands()
    assert "## `fedpeft server add-node`" in text and "--state PATH" in text


def test_empty_parts_say_how_to_see_them_on_github() -> None:
    for page in generate.ELSEWHERE:
        for part in generate._PART.finditer(page.read_text("utf-8")):
            assert "`make docs`" in part[0] and part[0].count("`") >= 4, page


def script(*arguments: str, where: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), *arguments]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)


def test_help_explains_the_script_and_writes_nothing(tmp_path: Path) -> None:
    shown = script("--help", where=tmp_path)
    assert shown.returncode == 0
    assert "--update" in shown.stdout and "Example: python docs/generate.py" in shown.stdout
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either FOLDER or --update"),
        (["site", "--update"], "expected either FOLDER or --update"),
        (["--upgrade"], "--upgrade"),
        ([str(ROOT)], "cannot be in or above"),
        ([str(ROOT / "docs" / "how-to")], "cannot be in or above"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        generate.main(arguments)
    assert stop.value.code == 2 and message in capsys.readouterr().err
