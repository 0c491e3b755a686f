"""The file with the waits of a server or node."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from fedpeft.errors import UserError
from fedpeft.hosting.timing import FILE, Timing


def test_a_folder_without_a_file_has_the_defaults_and_a_written_one_is_read(tmp_path: Path) -> None:
    assert Timing.read(tmp_path) == Timing()
    short = Timing().scaled(0.5)
    short.write(tmp_path)
    assert Timing.read(tmp_path) == short
    (tmp_path / FILE).write_text('\ufeff{"restarts": [0.5], "pulls": 1}')
    assert Timing.read(tmp_path) == Timing(restarts=(0.5,), pulls=1)


def test_pauses_are_scaled_and_limits_are_kept() -> None:
    before, after = asdict(Timing()), asdict(Timing().scaled(0.5))
    kept = {name for name, value in before.items() if after[name] == value}
    assert kept == {"stop", "stop_each", "connection", "beat", "quiet", "silent", "signature"}
    assert after["restarts"] == (0.5, 1.0, 2.5, 5.0, 15.0) and after["questions"] == 10.0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is damaged: expected a JSON object; correct or remove it"),
        ("[1]", "is damaged: expected a JSON object; correct or remove it"),
        ('{"pull": 1}', ": unknown key 'pull'; expected restarts, health, "),
        ('{"pulls": -1}', ": 'pulls' is -1; expected seconds"),
        ('{"pulls": 0}', ": 'pulls' is 0; expected seconds above 0, at most a day"),
        ('{"pulls": 1e6}', ": 'pulls' is 1000000.0; expected seconds above 0, at most a day"),
        ('{"pulls": true}', ": 'pulls' is true; expected seconds"),
        ('{"pulls": [1]}', ": 'pulls' is [1]; expected seconds"),
        ('{"pulls": NaN}', ": 'pulls' is NaN; expected seconds"),
        ('{"restarts": 1}', ": 'restarts' is 1; expected a list of seconds above 0"),
        ('{"restarts": []}', ": 'restarts' is []; expected a list of seconds above 0"),
    ],
)
def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(UserError) as error:
        Timing.read(tmp_path)
    said = str(error.value)
    assert said.startswith(f"'{tmp_path / FILE}'") and problem in said and "\n" not in said
