"""Table files: pandas as an oracle, and the columns and rows that are read."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import write_table as write_parquet

from fedpeft.errors import UserError
from fedpeft.tasks.readers import read_table
from fedpeft.tasks.table import Table

pd = pytest.importorskip("pandas")
GLUE = Path(__file__).resolve().parents[3].parent / "shared/data/glue"
FILES = sorted(GLUE.glob("*/*.tsv"))


def by_pandas(path: Path) -> dict[str, list[str]] | None:
    """Return the columns of a delimited file as pandas reads them; None if it refuses the file."""
    tabs = path.suffix == ".tsv"
    try:
        frame = pd.read_csv(
            path,
            sep="\t" if tabs else ",",
            quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL,
            dtype=str,
            na_filter=False,
            skip_blank_lines=False,
        )
    except (pd.errors.EmptyDataError, pd.errors.ParserError):
        return None
    filled = frame.ne("").any(axis=1).to_numpy().nonzero()[0]
    if not isinstance(frame.index, pd.RangeIndex) or not len(filled):
        return None
    return frame.iloc[: filled[-1] + 1].to_dict("list")


def read(path: Path) -> dict[str, list[str]] | None:
    """Return the columns of a file; None if it is refused."""
    try:
        table = read_table(path)
    except UserError as error:
        assert "\n" not in str(error)
        return None
    assert list(table.numbers) == list(range(1, len(table) + 1))
    return dict(table.columns)


@pytest.mark.skipif(not FILES, reason=f"no GLUE files in {GLUE}")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_glue_files_are_read_as_by_pandas(path: Path) -> None:
    assert read(path) == by_pandas(path)


@given(st.lists(st.tuples(*[st.text('a", \t\r\n\u2028é')] * 2), min_size=1))
def test_quoted_tables_are_read_as_by_pandas(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "quoted.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert read(path) == by_pandas(path)


@given(st.text('a" \t\r\n\u2028é'))
def test_any_tsv_file_is_read_or_refused_as_by_pandas(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.tsv"
    path.write_bytes(f"text\tlabel\n{content}".encode())
    assert read(path) == by_pandas(path)


@given(st.text('a",\r\n'))
def test_any_csv_file_that_is_read_is_read_as_by_pandas(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    """Other files with stray quotes or carriage returns are refused; pandas guesses at them."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    content = re.sub("\r+", "\r", content)  # before a line feed, csv takes any number for one
    path.write_bytes(f"text,label\n{content}".encode())
    table = read(path)
    assert table is None or table == by_pandas(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r\r\n", "\r"])
def test_rows_of_csv_files_end_as_the_header_does(tmp_path: Path, end: str) -> None:
    path = tmp_path / "a.csv"
    rows = ["text,label", 'a,"b\rc"', "d,e", ""]
    path.write_bytes(end.join(rows).encode())
    assert read(path) == {"text": ["a", "d"], "label": ["b\rc", "e"]}


def test_a_lone_carriage_return_splits_no_row_of_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,label\na,b\nc,d\re,f\n")  # three rows, or a label of two lines
    with pytest.raises(UserError, match=r"a.csv: not a table: new-line .* row 2; check its quotes"):
        read_table(path)


def test_spaces_around_the_names_in_a_header_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text, label ,x y\na,b,c\n")
    assert read(path) == {"text": ["a"], "label": ["b"], "x y": ["c"]}
    names = ("text", " label ", "x y")  # as the settings name it
    assert read_table(path, {" label "}) == Table(names, {" label ": ["b"]}, range(1, 2))
    path.write_text("label, label\na,b\n")
    with pytest.raises(UserError, match="two columns have the name 'label'"):
        read_table(path)


@pytest.mark.parametrize("extension", ["tsv", "csv", "jsonl"])
def test_only_the_mark_at_the_start_of_a_file_is_none_of_its_text(
    tmp_path: Path, extension: str
) -> None:
    path = tmp_path / f"a.{extension}"
    frame = pd.DataFrame({"text": ["\ufeffa", "b"], "label": ["1", "2"]})
    if extension == "jsonl":
        content = frame.to_json(orient="records", lines=True)
    else:
        content = frame.to_csv(sep="\t" if extension == "tsv" else ",", index=False)
    path.write_text("\ufeff" + content)
    assert read(path) == frame.to_dict("list")


@pytest.mark.parametrize("extension", ["tsv", "csv", "jsonl", "parquet"])
def test_only_wanted_columns_are_kept(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    frame = pd.DataFrame({"a": ["x", "y"], "b": ["1", "2"], "c": ["3", "4"]})
    if extension == "parquet":
        frame.to_parquet(path)
    elif extension == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, sep="\t" if extension == "tsv" else ",", index=False)
    names = ("a", "b", "c")
    assert read_table(path, {"c", "none"}) == Table(names, {"c": ["3", "4"]}, range(1, 3))
    assert read_table(path, set()) == Table(names, {}, range(1, 3))


def test_columns_of_jsonl_are_those_of_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"b": 1}\n\n{"a": [2.0], "b": null}\n')
    assert read_table(path) == Table(("b", "a"), {"b": [1, None], "a": [None, [2.0]]}, range(1, 3))


def test_parquet_keeps_types_and_leaves_out_a_stored_index(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {"text": [["a", "b"], ["c"], None], "label": [1, 2, 3], "score": [0.5, None, 2.0]}
    frame = pd.DataFrame(columns, index=pd.Index([7, 5, 3], name="id"))
    frame.to_parquet(path)
    table = read_table(path)
    assert (table.names, dict(table.columns)) == (tuple(columns), columns)
    frame[frame.label > 1].reset_index(drop=True)[::-1].to_parquet(path)
    assert read_table(path).names == tuple(columns)


def test_reading_parquet_needs_no_pandas(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"text": ["a"], "label": [[1, None]]}).to_parquet(path)
    code = (
        "import sys; from pathlib import Path; from fedpeft.tasks.readers import read_table\n"
        f"print(dict(read_table(Path({str(path)!r})).columns), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "{'text': ['a'], 'label': [[1, None]]} False\n", done.stderr


def test_selected_rows_keep_their_numbers() -> None:
    table = Table(("a", "b"), {"a": ["x", "y", "z"]}, range(1, 4))
    chosen = table.select([2, 0])
    assert chosen == Table(("a", "b"), {"a": ["z", "x"]}, [3, 1])
    assert chosen.select([1]) == Table(("a", "b"), {"a": ["x"]}, [1])


def test_two_columns_with_the_same_name_are_refused_if_they_are_read(tmp_path: Path) -> None:
    written, stored = tmp_path / "a.csv", tmp_path / "a.parquet"
    written.write_text("text,text,label\na,b,c\n")
    write_parquet(pa.table([["a"], ["b"], ["c"]], names=["text", "text", "label"]), stored)
    for path in (written, stored):
        assert read_table(path, {"label"}).columns == {"label": ["c"]}
        with pytest.raises(UserError) as caught:
            read_table(path, {"text"})
        assert str(caught.value) == f"{path}: two columns have the name 'text'"


@pytest.mark.parametrize("row", ['{"text": ' + "9" * 5000 + "}", '{"text": "a", "text": "b"}'])
def test_rows_that_python_would_not_hold_whole_are_refused(tmp_path: Path, row: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + row + "\n")
    with pytest.raises(UserError) as caught:
        read_table(path)
    reason = "expected a JSON object on one line, with each name once"
    assert str(caught.value) == f"{path} row 2: {reason}"


def test_dates_that_python_does_not_hold_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    days = pa.array([1_000_000_000], pa.int32()).cast(pa.date32())
    write_parquet(pa.table({"text": days}), path)
    with pytest.raises(UserError) as caught:
        read_table(path)
    assert str(caught.value) == f"{path}: cannot be read as Parquet"


def test_long_fields_are_read_or_refused_by_row(tmp_path: Path) -> None:
    text = "a" * 200_000
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        path = tmp_path / name
        rows = {"a.tsv": f"text\tn\n\t1\n{text}\t2\n", "a.csv": f"text,n\n,1\n{text},2\n"}
        path.write_text(rows.get(name, f'{{"text": ""}}\n{{"text": "{text}"}}\n'))
    assert read_table(tmp_path / "a.tsv").columns["text"] == ["", text]
    assert read_table(tmp_path / "a.jsonl").columns["text"] == ["", text]
    with pytest.raises(UserError) as caught:
        read_table(tmp_path / "a.csv")
    assert str(caught.value) == (
        f"{tmp_path / 'a.csv'}: not a table: field larger than field limit (131072) in row 2; "
        "check its quotes or save it as .jsonl"
    )


def test_text_behind_a_closing_quote_is_refused_by_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"a",b\n"a" c,b\n')
    with pytest.raises(UserError) as caught:
        read_table(path)
    reason = "',' expected after '\"' in row 2; check its quotes or save it as .jsonl"
    assert str(caught.value) == f"{path}: not a table: {reason}"
