"""The study file: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpeft.errors import UserError
from simulations.study.cells import axes_of, base_of
from simulations.study.file import parse, read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no cells: expected [axes] with at least one list, or [[cells]]"),
        ("[axes", "not valid TOML"),
        ("[axis]\nseed = [0]", "unknown key 'axis'; did you mean 'axes'?"),
        (
            "backbone = 'tiny'",
            "unknown key 'backbone'; is it an experiment file? `fedpeft simulate FILE` runs one",
        ),
        ("axes = 3", "axes = 3: expected a valid dictionary"),
        ("[axes]\nseed = [0]\n[search]\nvalidation = 2", "search.validation = 2: expected less"),
        ("[axes]\nseed=[0]\n[[published]]\nscore = 0.9", "published.0.source: is missing"),
        ("[axes]\ncell=[0]\n[[cells]]\nseed=1", "axes.cell: [[cells]] are an axis of this name"),
    ],
)
def test_a_wrong_file_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("seed = []", "axes.seed = []: an empty axis leaves no cells"),
        ("seed = 3", "axes.seed = 3: expected a list"),
        ("seed = [1, 1]", "axes.seed: the label '1' occurs twice"),
        ("method = [{ label = 3, seed = 1 }]", "axes.method: label = 3, expected a text"),
        (
            'seed = [1]\nmine = [{ label = { seed = "x" }, backbone = "tiny" }]',
            "axes.mine: axes.seed has labels 'seed', too",
        ),
        (
            'm = [{ label = { a = "x" }, seed = 1 }, { label = { b = "x" }, seed = 2 }]',
            "axes.m: labels 'a' and 'b'; expected the same",
        ),
    ],
)
def test_a_wrong_axis_is_named(axes: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        axes_of(parse(f"[axes]\n{axes}"))
    assert str(caught.value).startswith(said)


def test_overrides_win_over_the_base_and_a_run_has_one_thread() -> None:
    study = parse("[base]\nseed = 4\nlocal.lr = 0.1\n[axes]\nmethod.d = [4]\n")
    one = {"engine": {"threads": 1}}
    assert base_of(study, ()) == {"seed": 4, "local": {"lr": 0.1}, **one}
    changed = base_of(study, ["local.lr=0.5", 'task.path=a "b" é', "engine.threads=2"])
    assert changed == {
        "seed": 4,
        "local": {"lr": 0.5},
        "task": {"path": 'a "b" é'},
        "engine": {"threads": 2},
    }


def test_a_byte_order_mark_at_the_start_of_a_file_is_skipped(tmp_path: Path) -> None:
    text = "[axes]\nmethod.d = [4]\n"
    (tmp_path / "s.toml").write_text("\ufeff" + text)
    assert read(tmp_path / "s.toml") == (parse(text), text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no study file"):
        read(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"binary\.toml: not UTF-8"):
        read(tmp_path / "binary.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(UserError, match=r"empty\.toml: no cells"):
        read(tmp_path / "empty.toml")
