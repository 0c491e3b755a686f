"""What ``fedpeft methods`` says of every method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.cli.methods import describe_methods, methods
from fedpeft.errors import UserError
from fedpeft.methods import REGISTRY


def table(*arguments: Any) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in describe_methods(*arguments)}


def test_every_method_has_a_row_with_everything() -> None:
    rows = table("roberta-large", 3)
    assert list(rows) == list(REGISTRY)
    for row in rows.values():
        assert row["payload_bytes"] == 4 * (row["parameters"] + row["head"])
        assert row["head"] == 3075
        assert (
            isinstance(row["fusable"], bool) and row["source"] and isinstance(row["settings"], dict)
        )
        share = (row["parameters"] + 3075) / (KNOWN_SHAPES["roberta-large"].parameters + 3075)
        assert row["share"] == pytest.approx(share)
    assert rows["full"]["share"] == 1
    assert rows["full"]["parameters"] == 354_310_144
    assert rows["lora"]["sites"] == ("q", "v") and rows["lora"]["fusable"]
    assert not rows["prefix"]["fusable"]
    assert [name for name, row in rows.items() if not row["grouped"]] == ["said", "full"]


@pytest.mark.parametrize("backbone", [name for name in KNOWN_SHAPES if name != "tiny"])
def test_well_known_backbones_need_no_download(
    backbone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    rows = table(backbone, 2)
    errors = [row["error"] for row in rows.values() if "error" in row]
    if KNOWN_SHAPES[backbone].family in ("bert", "roberta", "distilbert", "electra", "bart"):
        assert not errors
    lacking = ("have no site", "has no biases", "no site of")
    assert all(any(words in error for words in lacking) for error in errors)
    assert len(errors) <= len(rows) / 2 and rows["slash"]["parameters"] == 1024


def test_settings_go_to_the_methods_that_have_them() -> None:
    rows = table("minilm", 9, ["method.rank=2", "head.d=100"])
    assert rows["lora"]["settings"]["rank"] == rows["vera"]["settings"]["rank"] == 2
    assert {row["head"] for row in rows.values()} == {109}


def test_a_method_that_does_not_fit_says_why() -> None:
    rows = table("tiny", 2)
    assert "expected at most 64, or 'max'" in rows["slash"]["error"]
    assert rows["slash"]["parameters"] is None
    assert rows["lora"]["parameters"] == 256
    # "max" is a d of SLaSh only, and the others say so.
    rows = table("tiny", 2, ["method.d=max"])
    assert rows["slash"]["parameters"] == 64 and "method.d = 'max'" in rows["jr_warp"]["error"]


def test_one_method_can_be_listed_alone() -> None:
    (row,) = describe_methods("minilm", 2, ["method.name=lora", "method.sites=v,q,q"])
    assert row["method"] == "lora" and row["settings"]["sites"] == ("q", "v")
    with pytest.raises(UserError, match=r"method.d=3: no method has this setting; valid: head.d,"):
        describe_methods("minilm", 2, ["method.name=lora", "method.d=3"])
    with pytest.raises(UserError, match="unknown method; did you mean 'lora'"):
        describe_methods("minilm", 2, ["method.name=lra"])


def test_a_setting_that_fits_no_method_is_refused() -> None:
    with pytest.raises(UserError, match=r"method\.sites = 'x': expected 'q', 'k'"):
        describe_methods("minilm", 2, ["method.sites=x"])
    with pytest.raises(UserError, match="no method has this setting"):
        describe_methods("minilm", 2, ["local.lr=1"])


def test_the_table_shows_what_the_json_says(capsys: pytest.CaptureFixture[str]) -> None:
    methods("minilm", 2, None, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    methods("minilm", 2, None, as_json=False)
    printed = capsys.readouterr().out
    for row in rows:
        line = next(line for line in printed.splitlines() if line.split()[:1] == [row["method"]])
        assert f"{row['parameters']:,}" in line and f"{row['payload_bytes']:,}" in line


@pytest.mark.parametrize("width", [60, 80, 100, 149, 150, 200])
def test_the_table_fits_its_width_and_cuts_no_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    methods("roberta-large", 2, None, as_json=False)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    assert ("Gupta et al." in printed) == (width >= 150)
    assert ("sites and sources: in 150 columns" in printed) == (width < 150)
    if width >= 80:
        for row in table("roberta-large", 2).values():
            assert f"{row['parameters']:,} " in printed and f"{row['payload_bytes']:,} " in printed


def test_bytes_of_each_codec_fit_120_columns(capsys: pytest.CaptureFixture[str]) -> None:
    methods("roberta-large", 3, ["method.d=2048"], as_json=False, as_bytes=True)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 120
    for name, row in table("roberta-large", 3, ["method.d=2048"]).items():
        line = next(line for line in printed.splitlines() if line.split()[:1] == [name])
        assert list(row["message_bytes"]) == ["float32", "eden4", "eden2", "eden1", "eden0.2"]
        assert all(f"{size:,}" in line for size in row["message_bytes"].values())
    slash = table("roberta-large", 3, ["method.d=2048"])["slash"]["message_bytes"]
    assert (slash["float32"], slash["eden1"]) == (4 * 5123 + 250, 4 + 641 + 244)


def test_bytes_name_a_method_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    methods("minilm", 2, ["method.d=5000"], as_json=False, as_bytes=True)
    assert "slash: method.d = 5000: slash shifts" in capsys.readouterr().out
