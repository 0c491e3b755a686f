"""`fedpeft report` on a real study: content of the page, and damaged folders."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from small_studies import BASE, Watched, here

from fedpeft.cli import main
from fedpeft.errors import UserError
from simulations.report.page import families_of, write_report
from simulations.report.summary import finals, labelled
from simulations.study.execution import run_study
from simulations.study.folder import StudyFolder


def sections(page: str) -> dict[str, str]:
    """Return id of a heading -> the content below it."""
    parts = re.split(r'<h2 id="([a-z]+)">', page)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> list[list[str]]:
    """Return the texts of a section's first table, its headings first."""
    table = section.partition("<table>")[2].partition("</table>")[0]
    lines = [re.findall(r"<t[hd].*?</t[hd]>", line, re.S) for line in table.split("</tr>")]
    return [[html.unescape(re.sub("<.*?>", "", cell)).strip() for cell in line] for line in lines][
        :-1
    ]


@pytest.fixture(scope="module")
def reported(finished_study: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study with its report; read-only."""
    path = shutil.copytree(finished_study, tmp_path_factory.mktemp("reported") / "study")
    write_report(path)
    return Path(path)


@pytest.fixture
def page(reported: Path) -> str:
    """The report of the study."""
    return (reported / "report.html").read_text()


def test_the_page_holds_counts_targets_failures_and_settings(page: str) -> None:
    parts = sections(page)
    assert "8 of 12 cells finished, 4 failed;\n2 seeds;" in page
    assert "torch 2." in page and "fedpeft 0." in page
    assert "cells differ in their data" not in page
    targets = {tuple(row[:2]): row[2:] for row in rows(parts["targets"])}
    assert targets["feeling", "linear"][:3] == ["0.0100", "2 of 2", "1.0"]
    assert targets["likeness", "linear"] == ["2.0000", "not reached", "–", "–", "–"]
    assert parts["failed"].count("too few") + parts["failed"].count("refused") >= 4
    assert "max_update_norm = 1e-9" in parts["settings"]
    assert "bytes of encoded vectors from all clients" in parts["settings"]


def test_the_results_table_holds_the_numbers_of_the_runs(reported: Path, page: str) -> None:
    first, *others = rows(sections(page)["results"])
    row = dict(zip(first, others[0], strict=True))
    results = [
        json.loads(path.read_text())
        for path in reported.glob("cells/*-feeling-linear-*/result.json")
    ]
    scores = pd.Series([result["score"] for result in results])
    assert len(scores) == 2
    assert "chosen by the search" not in first  # there was none
    assert row["score, mean ± sd"] == f"{scores.mean():.4f} ± {scores.std():.4f}"
    assert (row["task"], row["method"], row["seeds"]) == ("feeling", "linear", "2")
    assert row["P"] == str(results[0]["vector_size"]) == row["P of the head"]
    up = results[0]["bytes"]["per_client_round_up"]
    assert row["payload up per client and round"] == f"{up['payload']} B"
    assert row["message up per client and round"] == f"{up['message']} B"
    total = sum(results[0]["bytes"][way]["message"] for way in ("up", "down"))
    assert row["messages up + down, all clients and rounds"] == f"{total / 1000:.1f} KB"


def test_significant_differences_come_first_and_the_others_are_folded(
    table: Callable[..., pd.DataFrame],
) -> None:
    spread = [0.01, -0.02, 0.03, -0.01, 0.02, 0.015]
    scores = {"a": 0.9, "b": 0.5, "c": 0.501}
    rows = [
        ("T", name, seed, [score + spread[(seed + at) % 6]])
        for at, (name, score) in enumerate(scores.items())
        for seed in range(5)
    ]
    (family,) = families_of(finals(labelled(table(rows))))
    assert {(c.one, c.other) for c in family.significant} == {("a", "b"), ("a", "c")}
    assert [(c.one, c.other) for c in family.others] == [("b", "c")]


def test_a_table_of_no_significant_difference_is_folded(page: str) -> None:
    section = sections(page)["significance"]
    assert section.count("<h3>") == section.count("0 of 1 differences are significant") == 3
    folded = re.findall(r"<details>\n<summary>1 that is not significant</summary>", section)
    assert len(folded) == section.count("<table>") == 3


def test_the_frozen_backbone_of_each_cell_is_kept_in_a_table(study: Path) -> None:
    """So that it outlives the runs; the page has its mean over the cells of a task."""
    main(["report", str(study)])
    table = pd.read_csv(study / "frozen.csv").merge(
        pd.read_csv(study / "table.csv").query("last"), on="cell"
    )
    assert len(table) == 8 and set(table["name"]) == {"logistic regression", "ridge regression"}
    assert table.groupby(["axis.task", "seed"])["score_x"].nunique().eq(1).all()
    means = table.groupby("axis.task")["score_x"].mean()
    shown = rows(sections((study / "report.html").read_text())["frozen"])
    assert {row[0]: row[3] for row in shown[1:]} == {
        task: f"{mean:.4f}" for task, mean in means.items()
    }


def test_published_scores_appear_only_in_their_table(page: str) -> None:
    row = dict(zip(*rows(sections(page)["published"]), strict=True))
    assert row["published"] == "99.125" and row["source"] == "a paper, Table 1"
    assert re.fullmatch(r"0\.\d{4} ± 0\.\d{4} \(2\)", row["measured here, mean ± sd"])
    assert "99.125" not in "".join(
        sections(page)[name] for name in ("results", "targets", "budgets")
    )


def test_texts_of_the_study_are_escaped(page: str, evil: str) -> None:
    assert html.escape(evil, quote=False) in page.replace("&#39;", "'")
    assert page.count("<script") == 1  # the script of the page
    assert "Small &lt;b&gt;study&lt;/b&gt;" in page and "<i>" not in page


def test_the_page_loads_nothing(page: str) -> None:
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not re.findall(r"url\((?!#)", page) and "@import" not in page
    assert "default-src 'none'" in page


def test_the_same_study_gives_the_same_files(reported: Path, study: Path) -> None:
    write_report(study)
    names = ["report.html", "table.csv", "table.parquet"]
    names += [str(path.relative_to(study)) for path in study.glob("figures/*")]
    assert len(names) > 3
    assert all((reported / name).read_bytes() == (study / name).read_bytes() for name in names)


def test_an_unfinished_study_reports_its_finished_cells(study: Path) -> None:
    for path in study.glob("cells/1-*/result.json"):
        path.unlink()
    (study / "table.csv").write_text("old")
    page = write_report(study)[0].read_text()
    assert "4 of 12 cells finished" in page
    assert set(pd.read_csv(study / "table.csv")["seed"]) == {0}
    assert "±" not in "".join(row[2] for row in rows(sections(page)["results"])[1:])


def test_damaged_results_are_named_and_omitted(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, second) = sorted(study.glob("cells/?-feeling-linear-*/result.json"))
    first.write_text("{")
    result = json.loads(second.read_text())
    second.write_text(json.dumps({k: v for k, v in result.items() if k != "metric"}))
    main(["report", str(study)])
    out, err = capsys.readouterr()
    page = (study / "report.html").read_text()
    assert out.splitlines()[0] == "6 of 12 cells finished"
    reasons = ("JSONDecodeError", "KeyError: 'metric'")
    damaged = [line for line in err.splitlines() if line.startswith("damaged")]
    for path, line, reason in zip((first, second), damaged, reasons, strict=True):
        name = f"cells/{path.parent.name}/result.json"
        assert name in line and reason in line and f"<code>{name}: " in page


def test_a_study_without_results_is_an_error(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in study.glob("cells/*/result.json"):
        path.unlink()
    with pytest.raises(SystemExit) as stop:
        main(["report", str(study)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert f"no results yet in '{study}', 4 runs failed: round 1" in error
    assert "; run `fedpeft study run" in error
    assert not (study / "report.html").exists()


def test_results_without_a_score_are_an_error(study: Path) -> None:
    for path in study.glob("cells/*/rounds.jsonl"):
        lines = [json.loads(line) | {"score": None} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = path.with_name("result.json")
        result.write_text(json.dumps(json.loads(result.read_text()) | {"score": None}))
    with pytest.raises(UserError, match="none of its runs was evaluated"):
        write_report(study)


def test_a_folder_without_a_study_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no study"):
        write_report(tmp_path)


def test_the_report_of_a_search_shows_the_chosen_settings(tmp_path: Path) -> None:
    """A list of cells of which only one has settings to search, as in table2.toml."""
    text = (
        BASE
        + """
[[cells]]
label = { task = "T", method = "A" }
method.name = "linear"
over.local.lr = [0.1, 0.2, 0.3]
[[cells]]
label = { task = "T", method = "B" }
method.name = "bitfit"
[search]
"""
    )
    folder = StudyFolder.create(tmp_path / "study", text, resume=False)
    run_study(folder, folder.plan(), here, Watched())
    path, content = write_report(folder.path)
    assert [cell.labels for cell, _ in content.finished] == [
        {"task": "T", "method": "A"},
        {"task": "T", "method": "B"},
    ]
    assert [best.values.keys() for best in content.best.values()] == [{"local.lr"}]
    assert "local.lr = 0." in path.read_text(encoding="utf-8")


def test_caveats_of_scores_stand_below_the_results(reported: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(reported, tmp_path / "study"))
    assert "<ul" not in sections((path / "report.html").read_text())["results"]
    for number, file in enumerate(sorted(path.glob("cells/*/result.json"))[:3]):
        lines = ["cut: 3 of 40 texts"] if number < 2 else ["tags: <IOB2>"]
        file.write_text(json.dumps({**json.loads(file.read_text()), "remarks": lines}))
    write_report(path)
    results = sections((path / "report.html").read_text())["results"]
    assert re.findall("<li>(.*)</li>", results) == [
        "cut: 3 of 40 texts (2 of 8 cells)",
        "tags: &lt;IOB2&gt; (1 of 8 cells)",
    ]
