"""Figures: files, tooltips of marks, unique ids, and styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from fedpeft.page.colours import COLOURS, INK
from simulations.report import figures
from simulations.report.panel import Panel, settings
from simulations.report.style import styles_of
from simulations.report.summary import SENT, labelled
from simulations.report.svg import inline
from simulations.spread import Spread

Make = Callable[..., pd.DataFrame]
TWO = [("T", name, seed, [0.5, 0.6, 0.7 + seed / 10]) for name in "ab" for seed in (0, 1)]


def marks(svg: str) -> list[tuple[str, str]]:
    """Return (series, tooltip) of each mark of a picture."""
    return [
        (part.attrib["data-series"], mark.attrib["data-tip"])
        for part in ElementTree.fromstring(svg).iter()
        if "data-series" in part.attrib
        for mark in part.iter()
        if "data-tip" in mark.attrib
    ]


@pytest.fixture(autouse=True)
def _look() -> Iterator[None]:
    with settings():
        yield


def test_the_score_figure_has_one_mark_per_series(table: Make, tmp_path: Path) -> None:
    frame = labelled(table(TWO, {"b": 5}))
    (picture,) = figures.draw_scores(tmp_path, frame, styles_of(frame), {})
    assert picture.name == "score-bytes-t"
    assert {path.name for path in tmp_path.iterdir()} == {"score-bytes-t.png", "score-bytes-t.svg"}
    text = "accuracy 0.7500 ± 0.0707 (2 seeds)"
    assert marks(picture.svg) == [
        ("0", f"a\n{text}\n300 B payload a client sent up, whole run, mean over clients"),
        ("1", f"b\n{text}\n1.5 KB payload a client sent up, whole run, mean over clients"),
    ]


@pytest.mark.parametrize("x", ["round", SENT])
def test_curves_have_one_mark_per_round(table: Make, tmp_path: Path, x: str) -> None:
    frame = labelled(table(TWO))
    (picture,) = figures.draw_curves(tmp_path, frame, styles_of(frame), x, {})
    assert [series for series, _ in marks(picture.svg)] == ["0"] * 3 + ["1"] * 3
    assert marks(picture.svg)[1][1].endswith(
        "accuracy 0.6000 ± 0.0000 (2 seeds)\nround 2, 200 B of payload"
    )


def test_a_long_curve_has_few_marks_and_the_last_one(table: Make, tmp_path: Path) -> None:
    frame = labelled(table([("T", "a", 0, [0.5] * 205)]))
    (picture,) = figures.draw_curves(tmp_path, frame, styles_of(frame), "round", {})
    tips = [tip for _, tip in marks(picture.svg)]
    assert 15 < len(tips) < 25
    assert "round 1," in tips[0] and "round 205," in tips[-1]


def test_score_against_epsilon_only_where_it_varies(table: Make, tmp_path: Path) -> None:
    frame = table([("T", name, 0, [0.5]) for name in "aabb"])
    frame["axis.epsilon"] = ["8", "none"] * 2
    assert not figures.draw_epsilon(tmp_path, labelled(frame), styles_of(labelled(frame)))
    frame["target_epsilon"], frame["cell"] = [8.0, None] * 2, list("wxyz")
    given = frame.assign(
        privacy="example", epsilon=[7.9, 3.25] * 2
    )  # the first and third with a given noise
    drawn = figures.draw_epsilon(tmp_path, labelled(given), styles_of(labelled(given)))
    assert "target epsilon 3.25" in drawn[0].svg and "without privacy" not in drawn[0].svg
    frame = labelled(frame)
    (picture,) = figures.draw_epsilon(tmp_path, frame, styles_of(frame))
    tips = [tip.replace("\n", " ") for _, tip in marks(picture.svg)]
    assert tips[0] == "a · 8 accuracy 0.5000 target epsilon 8"
    assert sum("without privacy" in tip for tip in tips) == 2


def test_partitions_of_few_and_of_many_clients(tmp_path: Path) -> None:
    sizes = list(range(300))
    spreads = {
        "few": Spread([3, 1], ["no", "yes"], [[2, 1], [0, 1]]),
        "many": Spread(sizes, ["no", "yes"], [[0, n] for n in sizes]),
        "scores": Spread([3, 1], [], []),
        "named": Spread([3, 1], [], [], names=["north", "a long $name$"]),
    }
    pictures = figures.draw_partitions(tmp_path, spreads)
    assert [picture.name for picture in pictures] == [f"partition-{n}" for n in range(1, 5)]
    assert ["sorted by size" in picture.svg for picture in pictures] == [False, True, False, False]
    assert ["yes" in picture.svg for picture in pictures] == [True, True, False, False]
    assert ["north" in picture.svg for picture in pictures] == [False, False, False, True]
    assert "a long …" in pictures[3].svg


def test_labels_of_any_kind_are_text(table: Make, tmp_path: Path) -> None:
    labels = ["$\\frac{", "<script>", "标签", "x" * 300]
    frame = labelled(table([(label, label, 0, [0.5]) for label in labels]))
    pictures = figures.draw_scores(tmp_path, frame, styles_of(frame), {})
    assert len({picture.name for picture in pictures}) == 4
    assert "<script>" not in "".join(picture.svg for picture in pictures)
    assert all(
        f"{label}\n" in marks(picture.svg)[0][1]
        for label, picture in zip(labels, pictures, strict=True)
    )


def test_series_look_different_and_share_the_colour_of_their_method(table: Make) -> None:
    names = [f"m{at}" for at in range(30)]
    styles = list(styles_of(labelled(table([("T", name, 0, [0.5]) for name in names]))).values())
    assert len({(style.colour, style.marker, style.dash) for style in styles}) == 30
    assert len({style.colour for style in styles}) == len(COLOURS)
    frame = table([("T", name, 0, [0.5]) for name in "aabb"])
    frame["axis.alpha"] = ["0.1", "1"] * 2
    styles = list(styles_of(labelled(frame)).values())
    assert len({(style.colour, style.marker, style.dash) for style in styles}) == 4
    assert styles[0].colour == styles[1].colour != styles[2].colour


def grid(table: Make, *axes: str) -> pd.DataFrame:
    """Return a table of three methods at each pair of three labels of two more axes."""
    rows = [("T", method, seed, [0.1, 0.2 + seed / 9]) for method in "abc" for seed in (0, 1)]
    parts = []
    for at, label in enumerate(["0.1", "1", "iid"]):
        part = table(rows).assign(**{f"axis.{axis}": label for axis in axes})
        part["score"] += at / 5
        parts.append(part.assign(cell=part["cell"] + label))
    return labelled(pd.concat(parts, ignore_index=True))


def test_two_axes_are_drawn_as_small_pictures_with_equal_axes(
    table: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine series over one another could not be told apart."""
    limits = []
    save = Panel.save

    def saved(panel: Panel, *arguments: Path | str) -> object:
        limits.append((panel.axes.get_title("left"), panel.axes.get_xlim(), panel.axes.get_ylim()))
        return save(panel, *arguments)

    monkeypatch.setattr(Panel, "save", saved)
    frame = grid(table, "alpha")
    styles = styles_of(frame)
    assert [*styles] == ["a", "b", "c"]
    pictures = figures.draw_curves(tmp_path, frame, styles, "round", {})
    assert [p.name for p in pictures] == [f"curve-round-t-{name}" for name in ("0-1", "1", "iid")]
    assert [title for title, *_ in limits] == ["T · 0.1", "T · 1", "T · iid"]
    assert len({each[1:] for each in limits}) == 1
    tips = [tip.partition("\n")[0] for _, tip in marks(pictures[2].svg)]
    assert tips[::2] == ["a · iid", "b · iid", "c · iid"]
    assert {series for series, _ in marks(pictures[2].svg)} == {"0", "1", "2"}
    scores = figures.draw_scores(tmp_path, frame, styles, {})
    assert [len(marks(picture.svg)) for picture in scores] == [3, 3, 3]


def test_axes_that_would_leave_one_curve_in_each_picture_stay_together(table: Make) -> None:
    frame = table([("T", name, 0, [0.5]) for name in "abcdef"])
    frame["axis.setting"] = [*"uvwxyz"]
    frame = labelled(frame)
    assert set(frame["facet"]) == {""} and frame["curve"].equals(frame["series"])


def test_a_target_epsilon_is_along_x_and_no_curve(table: Make, tmp_path: Path) -> None:
    frame = pd.concat([table([("T", name, 0, [0.5]) for name in "abc"])] * 3, ignore_index=True)
    frame["axis.epsilon"] = [label for label in ("1", "3", "none") for _ in range(3)]
    frame["target_epsilon"] = [epsilon for epsilon in (1.0, 3.0, None) for _ in range(3)]
    frame["cell"] = [*"abcdefghi"]
    frame = labelled(frame)
    assert [*styles_of(frame)] == ["a", "b", "c"]
    (picture,) = figures.draw_epsilon(tmp_path, frame, styles_of(frame))
    assert len(marks(picture.svg)) == 9
    assert len(figures.draw_scores(tmp_path, frame, styles_of(frame), {})) == 3


def test_the_same_panel_gives_the_same_bytes(table: Make, tmp_path: Path) -> None:
    frame = labelled(table(TWO))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        figures.draw_scores(tmp_path / name, frame, styles_of(frame), {})
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_picture_in_a_page_has_unique_ids_and_css_colors(tmp_path: Path) -> None:
    panel = Panel("title", "x", "y")
    panel.axes.plot([1, 2], [1, 2], color=COLOURS[0][0])
    picture = panel.save(tmp_path, "some-name")
    ids = [
        part.attrib["id"]
        for part in ElementTree.fromstring(picture.svg).iter()
        if "id" in part.attrib
    ]
    assert ids and all(name.startswith("some-name-") for name in ids)
    assert "var(--c0)" in picture.svg and "var(--ink)" in picture.svg
    assert COLOURS[0][0] not in picture.svg and INK not in picture.svg
    assert "url(#some-name-" in picture.svg and "<metadata" not in picture.svg


def test_a_mark_without_a_tooltip_raises() -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><g id="series-0-1"><use/><use/></g></svg>'
    with pytest.raises(ValueError, match="shorter"):
        inline(svg, "name", "title", {}, {"series-0-1": ["one"]})
