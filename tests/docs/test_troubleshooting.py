"""Every message on the page for troubleshooting is one that the code can produce."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from pages import ROOT

PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
FOLDERS = ("fedpeft", "clients", "server", "simulations", "deployment")
_GAP = "\0"  # a placeholder of the code
_END = "\1"  # between two strings of the code
_ENTRY = re.compile(r"^- (?P<messages>`.+?`)$\n\n(?P<text>(?:^    .+\n)+)", re.M)
_WORD = re.compile(r"\b[A-Z]{2,}\b")  # a placeholder of the page, or a capital word of the code
_PRINTF = re.compile(r"%(?:\.\d+)?[dfgrs]")
_FEWEST_LETTERS = 12  # of a message, without its placeholders

ENTRIES = [match.groupdict() for match in _ENTRY.finditer(PAGE.read_text("utf-8"))]
MESSAGES = [m for entry in ENTRIES for m in re.findall(r"`([^`]+)`", entry["messages"])]


def strings(source: str) -> Iterator[str]:
    """Yield the strings of a module except docstrings, with a gap for each placeholder."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                parts = (p.value if isinstance(p, ast.Constant) else _GAP for p in values)
                yield re.sub(f"{_GAP}+", _GAP, "".join(map(str, parts)))
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield _PRINTF.sub(_GAP, text)


@cache
def strings_of_the_code() -> str:
    """Return the strings of all modules that may print a message."""
    modules = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return _END.join(text for path in modules for text in strings(path.read_text("utf-8")))


def occurs(message: str, code: str) -> bool:
    """Return whether a message is in one of the strings; its capital words may be gaps there."""
    words, fixed = _WORD.findall(message), _WORD.split(message)
    pattern = re.escape(fixed[0])
    for word, after in zip(words, fixed[1:], strict=True):
        pattern += f"(?:{_GAP}|{word}){re.escape(after)}"
    return re.search(pattern, code) is not None


@pytest.mark.parametrize("message", MESSAGES)
def test_the_code_has_the_message(message: str) -> None:
    is_there = occurs(message, strings_of_the_code())
    assert is_there, (
        f"{PAGE.relative_to(ROOT)} has `{message}`, but no string in {', '.join(FOLDERS)} does: "
        "the message was changed or removed; correct the page"
    )


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_has_enough_fixed_text(message: str) -> None:
    assert len(re.sub(r"[^a-z]", "", _WORD.sub("", message))) >= _FEWEST_LETTERS


def test_every_entry_of_the_page_is_read_and_says_what_to_do() -> None:
    assert len(ENTRIES) == len(re.findall(r"^- ", PAGE.read_text("utf-8"), re.M)) >= 25
    for entry in ENTRIES:
        assert entry["text"].count("**Do:** ") == 1, entry["messages"]


def test_no_message_is_on_the_page_twice() -> None:
    assert len({*MESSAGES}) == len(MESSAGES)


SOURCE = '''
"""The module waits for nodes."""
def wait(path, count, most):
    """Return when all nodes are there."""
    log.warning("round %d: client %d failed: %s", 1, 2, "late")
    log.error("no TLS at this port")
    raise UserError(f"'{path}'{count:,} has {most:g} rows, " f"expected HOST:PORT")
'''


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("round NUMBER: client CLIENT failed: REASON", True),
        ("client CLIENT failed", True),
        ("client CLIENT has failed", False),
        ("round 1: client CLIENT failed", False),
        ("no TLS at this port", True),
        ("no SSL at this port", False),
        ("'PATH'COUNT has MOST rows, expected HOST:PORT", True),
        ("has MOST rows, expected HOST:NUMBER", False),
        ("rows, expected HOST:PORT round", False),
        ("waits for nodes", False),
        ("all nodes are there", False),
    ],
)
def test_a_message_is_compared_with_the_strings_of_the_code(message: str, expected: bool) -> None:
    assert occurs(message, _END.join(strings(SOURCE))) == expected
