"""Each test that the page on attacks names is there."""

from __future__ import annotations

import ast
import re

import pytest
from pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "secure-aggregation-proofs.md"
USUAL = "tests/clients/test_masking*.py"  # the files of tests named without one
ROWS = re.findall(r"^\| (?!attack)(.+) \| (.+) \| (`.+) \|$", PAGE.read_text("utf-8"), re.M)


def test_the_page_has_its_attacks() -> None:
    assert len(ROWS) >= 45


@pytest.mark.parametrize("place", [row[2] for row in ROWS], ids=[row[0] for row in ROWS])
def test_its_tests_exist(place: str) -> None:
    names = re.findall(r"`([^`]+)`", place)
    files = [file for name in names if name.endswith(".py") for file in ROOT.glob(name)]
    sources = [file.read_text("utf-8") for file in files or ROOT.glob(USUAL)]
    defined = {
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
    }
    assert files or not any(name.endswith(".py") for name in names)
    assert {name for name in names if not name.endswith(".py")} <= defined
