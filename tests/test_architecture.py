"""Who may import whom, read from the source: the structure that DESIGN.md and the docs describe."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from imports import at_import, imported

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fedpeft", "clients", "server", "simulations")
OUTER = {"flwr", "flwr_datasets", "clients", "server", "simulations"}
FRONT = "fedpeft"  # the module fedpeft/__init__.py, which offers fedpeft.simulate
PROGRAM = "fedpeft.__main__"  # starts the command line
PUBLIC_FLOWER = {
    "flwr.app",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.clientapp",
    "flwr.simulation",
}
Graph = Mapping[str, set[str]]


def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the four folders, by full name."""
    trees = {}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


MODULES = modules()


def top_levels(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def module_graph() -> Graph:
    """Return the project's modules that each module imports, in functions too."""
    graph: dict[str, set[str]] = {}
    for module, tree in MODULES.items():
        names = {name if name in MODULES else name.rpartition(".")[0] for name in imported(tree)}
        graph[module] = {name for name in names if name in MODULES} - {module}
    return graph


def circles(graph: Graph) -> list[set[str]]:
    """Return the sets of nodes that can reach each other, by repeated removal of ends."""
    left = {node: set(targets) for node, targets in graph.items()}
    while True:
        inner = set().union(*left.values()) if left else set()
        ends = {node for node in left if not left[node] & left.keys() or node not in inner}
        if not ends:
            return [set(left)] if left else []
        left = {node: targets - ends for node, targets in left.items() if node not in ends}


def siblings(graph: Graph) -> dict[str, Graph]:
    """Return, of each folder, which of its files and subfolders import which others."""
    result: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, targets in graph.items():
        for target in targets:
            one, other = module.split("."), target.split(".")
            depth = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None
            )
            if depth is not None:  # otherwise one of the two is the front of the other's folder
                result[".".join(one[:depth])][one[depth]].add(other[depth])
    return result


def test_imports_are_recognized_wherever_they_stand() -> None:
    source = (
        "import a.b\nfrom c.d import e\n"
        "def f():\n    from g import h\n    import_module('i.j')\n"
        "if TYPE_CHECKING:\n    import k\n"
        "class L:\n    import m\n"
    )
    tree = ast.parse(source)
    assert set(imported(tree)) == {"a.b", "c.d.e", "g.h", "i.j", "k", "m"}
    assert set(at_import(tree)) == {"a.b", "c.d.e", "m"}
    assert all(sum(name.startswith(folder) for name in MODULES) >= 4 for folder in FOLDERS)
    assert "fedpeft.training" in module_graph()["clients.app"]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}, [{"a", "b", "c"}]),
    ],
)
def test_circles_of_a_graph_are_detected(graph: Graph, expected: list[set[str]]) -> None:
    assert circles(graph) == expected


def test_no_circle_of_files() -> None:
    graph = module_graph()
    assert circles({m: targets - {FRONT} for m, targets in graph.items() if m != FRONT}) == []


def test_no_circle_among_the_files_and_folders_of_any_folder() -> None:
    graph = module_graph()
    commands = {m: targets for m, targets in graph.items() if m.startswith("fedpeft.cli")}
    library = {m: targets for m, targets in graph.items() if m not in {FRONT, *commands}}
    checked = siblings(library) | {"fedpeft.cli": siblings(commands)["fedpeft.cli"]}
    for folder, children in checked.items():
        assert circles(children) == [], folder or "top level"


def test_only_the_command_line_and_the_front_import_upward() -> None:
    """The library imports neither Flower nor the other folders; nothing imports the cli."""
    for module, tree in MODULES.items():
        names = set(imported(tree))
        if module.startswith("fedpeft.cli") or module in (FRONT, PROGRAM):
            continue
        assert not any(name.startswith("fedpeft.cli") for name in names), module
        if module.startswith("fedpeft"):
            assert not top_levels(names) & OUTER, module


def test_the_front_imports_simulations_only_when_simulate_is_used() -> None:
    """`import fedpeft` stays cheap."""
    assert top_levels(imported(MODULES[FRONT])) & OUTER == {"simulations"}
    assert top_levels(at_import(MODULES[FRONT])) <= {"__future__", "typing", "fedpeft"}


def test_the_command_line_imports_the_other_folders_only_inside_commands() -> None:
    for module, tree in MODULES.items():
        if module.startswith("fedpeft.cli"):
            assert not top_levels(at_import(tree)) & OUTER, module


@pytest.mark.parametrize(
    ("folder", "others"),
    [("clients", {"server", "simulations"}), ("server", {"clients", "simulations"})],
)
def test_clients_and_server_import_only_the_library(folder: str, others: set[str]) -> None:
    for module, tree in MODULES.items():
        if module.partition(".")[0] == folder:
            assert not top_levels(imported(tree)) & others, module


def test_private_parts_of_flower_are_used_in_one_file_of_each_side_only() -> None:
    # Nodes of benchmarks take the place of Flower's SuperNode.
    benchmarks = ("simulations.benchmarks.parts.light_node", "simulations.benchmarks.strangers")
    exempt = ("server.flower", "clients.flower", *benchmarks)
    for module, tree in MODULES.items():
        if module in exempt:
            continue
        flower = {name for name in imported(tree) if name.partition(".")[0] == "flwr"}
        public = {name for name in flower if {name, name.rpartition(".")[0]} & PUBLIC_FLOWER}
        assert flower == public, module


def test_no_import_is_relative() -> None:
    """The other tests of this file would not see it."""
    for module, tree in MODULES.items():
        assert not [name for name in imported(tree) if name.startswith(".")], module
