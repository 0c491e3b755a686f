"""The files of the project that a file depends on, read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from imports import at_import, constants, imported

ROOT = Path(__file__).resolve().parents[1]
#: Where Python looks for modules, as in pyproject.toml; and the folder of the importing test.
ROOTS = (ROOT, ROOT / "tests", ROOT / "tests" / "fedpeft", ROOT / "tests" / "deployment")
_MODULE = re.compile(r"([a-z]\w*(?:\.\w+)+)(?::\w+)?")  # "deployment.node.worker", "server.app:app"
#: A file, and whether its functions count: importing a subpackage calls none of its parents.
Visit = tuple[Path, bool]


def closure(starts: Iterable[Path], imported: Iterable[Path] = ()) -> set[Path]:
    """Return these files, what they import, and so on, with the conftest files of tests.

    Of the files ``imported`` only what their import executes counts.

    A string that is the name of a module, such as "deployment.node.worker", counts as an import of
    it: it may be imported by name, or started as a process. So do the imports of a string with a
    program.
    """
    open_visits: list[Visit] = [(path, True) for path in starts]
    open_visits += [(path, False) for path in imported]
    seen = set(open_visits)
    while open_visits:
        for visit in dependencies(*open_visits.pop()):
            if visit not in seen:
                seen.add(visit)
                open_visits.append(visit)
    return {path for path, _ in seen}


@cache
def dependencies(path: Path, whole: bool) -> frozenset[Visit]:
    """Return what a file imports itself; without ``whole``, only what its import executes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    statements = [node for node in tree.body if whole or not isinstance(node, functions)]
    names = {*(imported(tree) if whole else at_import(tree))}
    for text in constants(ast.Module(statements, [])):
        if match := _MODULE.fullmatch(text):
            names.add(match[1])
        elif "import " in text:
            names.update(_imported_by_text(text))
    files = {file for name in names for file in resolve(name, path.parent)}
    around = [folder for folder in path.parents if ROOT in folder.parents]
    conftests = {(folder / "conftest.py", True) for folder in around}
    packages = {(folder / "__init__.py", False) for folder in around}
    found = {(file, whole) for file in files} | conftests | packages
    return frozenset(visit for visit in found if visit[0].exists())


def _imported_by_text(text: str) -> set[str]:
    """Return what a string imports that may be a program, such as that of ``python -c``."""
    try:
        return {*imported(ast.parse(text))}
    except (SyntaxError, ValueError):
        return set()


@cache
def resolve(name: str, folder: Path) -> frozenset[Path]:
    """Return the file of a module; empty if it is not ours. For a package, also its main module.

    Args:
        name: full name of a module, or of something in one.
        folder: of the importing file.
    """
    first, *rest = name.split(".")
    for root in (*ROOTS, folder):
        if files := [*_files(root / first, rest)]:
            return frozenset(files)
    return frozenset()


def _files(place: Path, rest: list[str]) -> Iterator[Path]:
    """Yield the files of what is named ``rest`` in the module or package at ``place``."""
    front = place / "__init__.py"
    if place.with_suffix(".py").exists():
        yield place.with_suffix(".py")
    elif front.exists():
        inner = [*_files(place / rest[0], rest[1:])] if rest else [place / "__main__.py"]
        yield from inner or [front]
        yield from () if rest else (front,)
