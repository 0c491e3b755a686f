"""TOML of others is refused or read in bounded time, whatever it contains."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.toml import MAX_TEXT, loads

LIMIT = 2.0  # seconds, generous: most take a tenth


def filled(piece: str, before: str = "", after: str = "") -> str:
    """Return a text as long as allowed, of many equal pieces."""
    return before + piece * ((MAX_TEXT - len(before) - len(after)) // len(piece)) + after


def numbered(piece: str) -> str:
    """Return a text as long as allowed, of pieces with a number each."""
    count = MAX_TEXT // (len(piece) + 6)
    return "".join(piece.replace("#", f"{number}") for number in range(count))


HOSTILE = {
    "dotted key": filled("a.", after="a=1"),
    "dotted key of 20,000 parts": "a." * 20_000 + "a=1",
    "dotted section": filled("a.", "[", "a]"),
    "dotted key in a table": filled("a.", "x={", "a=1}"),
    "quoted key": filled('"a".', after="a=1"),
    "key of quotes": filled('"\\"" . ', after="a=1"),
    "literal key": filled("'a' .\t", after="a=1"),
    "many long keys": numbered("a.a.a.a.a.a.a.b#=1\n"),
    "key of long words": f"{'a' * 60_000}." * 7 + "x=1",
    "arrays in arrays": "x=" + "[" * 250_000,
    "tables in tables": filled("{a=", "x="),
    "few arrays in arrays": "x=" + "[" * 300 + "]" * 300,
    "sections": numbered("[s#]\n"),
    "deep sections": numbered("[a.b.c.d.e.f.s#]\n"),
    "array of tables": filled("[[s]]\n[s.t]\nx=1\n"),
    "keys": numbered("k#=1\n"),
    "keys in a table": "x={" + numbered("k#=1,") + "k=1}",
    "keys in a section": "[local]\n" + numbered("k#=1\n"),
    "dotted keys in a table": "x={" + numbered("a.k#=1,") + "k=1}",
    "equal keys": filled("a=1\n"),
    "integer": filled("9", "seed="),
    "integer of 4,000 digits": "seed=" + "9" * 4000,
    "negative integer": "[federation]\nrounds=-" + "9" * 4000,
    "hexadecimal integer": filled("f", "seed=0x"),
    "underscores": filled("1_", "seed=", "1"),
    "float": filled("9", "[local]\nlr=1."),
    "exponent": filled("9", "[local]\nlr=1e"),
    "string": filled("a", 'backbone="', '"'),
    "escaped string": filled("\\u0041", 'backbone="', '"'),
    "escaped quotes": filled('\\"', 'backbone="', '"'),
    "unclosed string": filled('\\"', 'backbone="'),
    "unclosed literal": filled("a", "backbone='"),
    "quotes": filled('"'),
    "apostrophes": filled("'"),
    "long string": filled('""a', 'backbone="""', '"""'),
    "joined lines": filled("\\\n", 'backbone="""', '"""'),
    "names": filled('"a",', "[task]\nlabels=[", '"b"]'),
    "array": filled("1,", "x=[", "1]"),
    "array of tables in an array": filled("{},", "x=[", "1]"),
    "array of comments": filled("#\n", "x=[", "1]"),
    "comments": filled("#\n"),
    "lines": filled("\n"),
    "spaces": filled(" ", "a"),
    "words": filled("a "),
    "key of one word": filled("a", after="=1"),
    "key like a setting": "[local]\n" + filled("l", after="r=1"),
    "dots": filled("."),
    "control characters": filled("\x01"),
    "dates": filled("1979-05-27 ", "x="),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    """Some are valid, such as a very long string."""
    began = time.process_time()
    with suppress(UserError):
        Experiment.load(HOSTILE[name][:MAX_TEXT])
    assert time.process_time() - began < LIMIT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n" * (MAX_TEXT + 1), "500,001 characters, expected at most 500,000"),
        ("a." * 8 + "a=1", "a key of more than 8 parts"),
        ("x=" + "[" * 100_000, "nested too deeply"),
        ("seed=" + "9" * 5000, "4300"),
        ("seed=0x" + "f" * 400_000, "an integer beyond 64 bits"),
        ("x=[{a=[-9223372036854775809]}]", "an integer beyond 64 bits"),
        ("a" * 400_000 + "=1\n" + "a" * 400, "not valid TOML"),
    ],
)
def test_a_refused_text_is_described_in_a_short_line(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as refused:
        Experiment.load(text)
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


def test_keys_of_8_parts_and_dots_in_values_are_read() -> None:
    parts = ".".join("abcdefgh")
    values = loads(f'{parts} = 1\npath = "/a.b/c.d..e/v1.2.3"\nlr = 0.001')
    assert values["path"] == "/a.b/c.d..e/v1.2.3"
    for part in parts.split("."):
        values = values[part]
    assert values == 1
