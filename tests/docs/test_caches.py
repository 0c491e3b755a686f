"""Every cache of the code is listed with its key in docs/explanation/determinism.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("fedpeft", "clients", "server", "simulations", "deployment")
KINDS = {"cache", "lru_cache", "WeakKeyDictionary", "WeakValueDictionary"}
LIST = re.compile(r"^## What is cached, and by which key$(.*?)(?=^## |\Z)", re.M | re.S)


def kind_of(node: ast.expr) -> str:
    """Return the name that an expression calls or names, without its module."""
    if isinstance(node, ast.Call):
        return kind_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def caches_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of functions and variables that are caches, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (node.name for each in node.decorator_list if kind_of(each) in KINDS)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            made = [node.value, node.value.func]  # lru_cache(maxsize=4)(function)
            if any(kind_of(each) in KINDS for each in made):
                yield ast.unparse(target).removeprefix("self.")


def test_caches_are_recognized_in_each_form() -> None:
    source = (
        "@cache\ndef a(): ...\n"
        "class B:\n    @functools.lru_cache(maxsize=4)\n    def c(self): ...\n"
        "    def d(self):\n        self.e: X = WeakValueDictionary()\n"
        "f = lru_cache(maxsize=4)(g)\nh = dict()\n@cached_property\ndef i(): ...\n"
    )
    assert {*caches_in(ast.parse(source))} == {"a", "c", "e", "f"}


def test_every_cache_is_listed_with_its_key() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for name in caches_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    page = (ROOT / "docs" / "explanation" / "determinism.md").read_text(encoding="utf-8")
    (section,) = LIST.findall(page)
    assert {*re.findall(r"`([\w/]+\.py: \w+)`", section)} == found
