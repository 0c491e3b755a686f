"""Who may import whom, read off the source: the packages stay as the design says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fedpeft", "clients", "server", "simulations")
OUTER = {"flwr", "flwr_datasets", "clients", "server", "simulations"}
FRONT = ROOT / "fedpeft" / "__init__.py"
PUBLIC_FLOWER = {
    "flwr.app",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.clientapp",
    "flwr.simulation",
}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of the modules that a piece of source imports, relative ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "" if not node.level else f".{node.module}"
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def called(node: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def at_import(tree: ast.Module) -> Iterator[str]:
    """Yield what is imported as soon as the module is: all but what stands in functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ClassDef):
            yield from at_import(ast.Module(node.body, []))
        else:
            yield from imported(node)


def packages(names: Iterator[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_there_is_something_to_check() -> None:
    assert all(len(sources(folder)) >= 4 for folder in FOLDERS)
    assert "flwr" in packages(imported(parse(ROOT / "server" / "app.py")))
    assert "simulations" in packages(imported(parse(ROOT / "fedpeft" / "cli" / "simulate.py")))


@pytest.mark.parametrize(
    ("source", "found", "early"),
    [
        ("import flwr.app", {"flwr.app"}, {"flwr.app"}),
        ("from flwr.app import Message", {"flwr.app"}, {"flwr.app"}),
        ("def f():\n    from server import app", {"server"}, set()),
        ("import importlib\nimportlib.import_module('flwr')", {"importlib", "flwr"}, None),
        ("class A:\n    import server\n    def f(self):\n        import flwr", None, {"server"}),
        ("try:\n    import server\nexcept ImportError:\n    pass", {"server"}, {"server"}),
    ],
)
def test_imports_are_found_wherever_they_stand(
    source: str, found: set[str] | None, early: set[str] | None
) -> None:
    tree = ast.parse(source)
    assert found is None or set(imported(tree)) == found
    assert early is None or set(at_import(tree)) == early


def test_the_library_knows_neither_flower_nor_the_other_folders() -> None:
    for path in sources("fedpeft"):
        if "cli" not in path.parts and path != FRONT:
            assert not packages(imported(parse(path))) & OUTER, path


def test_the_front_of_the_package_imports_a_simulation_only_when_asked_for_one() -> None:
    """``fedpeft.simulate`` is what people call, and `import fedpeft` stays cheap: see the file."""
    assert packages(imported(parse(FRONT))) & OUTER == {"simulations"}
    early = set(at_import(parse(FRONT)))
    assert early == {"__future__", "typing", "fedpeft.version"}


def test_the_command_line_imports_the_other_folders_only_inside_commands() -> None:
    for path in sources("fedpeft/cli"):
        assert not packages(at_import(parse(path))) & OUTER, path


@pytest.mark.parametrize(
    ("folder", "others"),
    [("clients", {"server", "simulations"}), ("server", {"clients", "simulations"})],
)
def test_clients_and_server_know_only_the_library(folder: str, others: set[str]) -> None:
    for path in sources(folder):
        assert not packages(imported(parse(path))) & others, path


def test_private_parts_of_flower_are_touched_in_one_file_of_each_side_only() -> None:
    for path in [path for folder in FOLDERS for path in sources(folder)]:
        if path in (ROOT / "server" / "flower.py", ROOT / "clients" / "flower.py"):
            continue
        flower = {name for name in imported(parse(path)) if name.split(".")[0] == "flwr"}
        assert flower <= PUBLIC_FLOWER, path


def test_nothing_is_imported_relatively() -> None:
    """So that the tests above see every import."""
    for path in [path for folder in FOLDERS for path in sources(folder)]:
        assert not [name for name in imported(parse(path)) if name.startswith(".")], path


def test_functions_are_short() -> None:
    """STYLE.md: no function over 60 lines."""
    for path in [path for folder in FOLDERS for path in sources(folder)]:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.lineno + 1
                assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"
