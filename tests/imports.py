"""Read from the source what a Python file imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of everything a syntax tree imports, wherever the import stands.

    ``from a.b import c`` yields ``a.b.c``: only the caller knows whether that is a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def called(node: ast.Call) -> str:
    """Return the last part of the name of a called function."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def at_import(tree: ast.Module) -> Iterator[str]:
    """Yield what a module imports as soon as it is imported itself: nothing inside functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ClassDef):
            yield from at_import(ast.Module(node.body, []))
        else:
            yield from imported(node)


def constants(tree: ast.AST) -> Iterator[str]:
    """Yield every string in a syntax tree, parts of f-strings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
