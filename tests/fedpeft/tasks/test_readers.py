import re

import numpy as np
import pandas as pd
import pytest

from fedpeft.errors import UserError
from fedpeft.tasks.readers import Columns, read_table, to_examples

CODES = {"no": 0, "yes": 1}


def refusal(path, text="text", codes=CODES, **columns):
    """The message for a file that must be refused; always a single line."""
    with pytest.raises(UserError) as caught:
        to_examples(read_table(path), path, Columns(text, "label", **columns), codes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("extension", ["tsv", "csv", "jsonl", "parquet"])
def test_the_four_formats_give_the_same_examples(tmp_path, extension):
    frame = pd.DataFrame(
        {
            "text": ["one, two", "NA", "null"],
            "other": ["a", "nan", "c"],
            "label": ["yes", "no", "yes"],
            "who": ["x", "y", "x"],
        }
    )
    path = tmp_path / f"data.{extension}"
    if extension == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif extension == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if extension == "tsv" else ",", index=False)
    columns = Columns("text", "label", "other", "who")
    examples = to_examples(read_table(path), path, columns, CODES)
    assert examples.text == ["one, two", "NA", "null"]
    assert examples.text_pair == ["a", "nan", "c"]
    assert examples.owners == ["x", "y", "x"]
    assert examples.labels.tolist() == [1, 0, 1]
    assert examples.labels.dtype == np.int64


def test_tsv_has_no_quoting_and_csv_has(tmp_path):
    path = written(tmp_path, "a.tsv", 'text\tlabel\n"open quote\tyes\nsaid "so"\tno\n')
    examples = to_examples(read_table(path), path, Columns("text", "label"), CODES)
    assert examples.text == ['"open quote', 'said "so"']
    path = written(tmp_path, "a.csv", 'text,label\n"two\nlines, ""quoted""",yes\n')
    examples = to_examples(read_table(path), path, Columns("text", "label"), CODES)
    assert examples.text == ['two\nlines, "quoted"']


def test_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = written(tmp_path, "a.csv", "\ufefftext,label\r\nfine,yes\r\n")
    examples = to_examples(read_table(path), path, Columns("text", "label"), CODES)
    assert (examples.text, examples.labels.tolist()) == (["fine"], [1])


def test_jsonl_keeps_line_separators_inside_a_text(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"text": "a\u2028b", "label": "yes"}\n\n')
    assert read_table(path).columns["text"] == ["a\u2028b"]


def test_integers_are_the_same_label_in_any_spelling(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"text": ["a", "b"], "label": [1.0, 0.0]}).to_parquet(path)
    columns = Columns("text", "label")
    assert to_examples(read_table(path), path, columns, {"0": 0, "1": 1}).labels.tolist() == [1, 0]
    path = written(tmp_path, "a.csv", "text,label\na,1.0\nb, 0\n")
    assert to_examples(read_table(path), path, columns, {"0": 0, "1": 1}).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "label", "who", "wrong"),
    [
        ('"a"', '["b", "c"]', '"d"', "column 'label' is list, expected text or a number"),
        ('"a"', '{"b": 1}', '"d"', "column 'label' is dict, expected text or a number"),
        ('"a"', '"yes"', '["d"]', "column 'who' is list, expected text or a number"),
        ('"a\\ud83d"', '"yes"', '"d"', "column 'text' is not valid Unicode"),
        ('"a"', '"\\ude00yes"', '"d"', "column 'label' is not valid Unicode"),
        ('"a"', '"yes"', '"\\ud83d"', "column 'who' is not valid Unicode"),
    ],
)
def test_values_that_are_no_text_are_refused_with_their_row(tmp_path, text, label, who, wrong):
    good = '{"text": "\\ud83d\\ude00", "label": "no", "who": 7}\n'
    line = f'{{"text": {text}, "label": {label}, "who": {who}}}\n'
    path = written(tmp_path, "a.jsonl", good + line)
    assert refusal(path, owner="who").startswith(f"{path} row 2: {wrong}")
    path = written(tmp_path, "a.jsonl", good)
    columns = Columns("text", "label", owner="who")
    examples = to_examples(read_table(path), path, columns, CODES)
    assert (examples.text, examples.owners) == (["\U0001f600"], ["7"])


def test_bytes_are_no_labels(tmp_path):
    path = tmp_path / "a.parquet"
    pd.DataFrame({"text": ["a"], "label": [b"yes"]}).to_parquet(path)
    wrong = f"{path} row 1: column 'label' is bytes, expected text or a number"
    assert refusal(path) == wrong


def test_scores_are_finite_float64(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\na\t5.000\nb\t3\n")
    labels = to_examples(read_table(path), path, Columns("text", "label"), None).labels
    assert labels.dtype == np.float64
    assert labels.tolist() == [5.0, 3.0]
    for bad in ("nan", "inf", "much", ""):
        path = written(tmp_path, "b.tsv", f"text\tlabel\na\t1\nb\t{bad}\n")
        expected = f"{path} row 2: label = '{bad}', expected a finite number"
        assert refusal(path, codes=None) == expected


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.xlsx", "", "unknown kind of file; valid: .tsv, .csv, .jsonl, .parquet"),
        ("a.tsv", "", "is empty; expected a header and rows"),
        ("a.tsv", "text\tlabel\n", "has no rows"),
        ("a.jsonl", "", "has no rows"),
        ("a.csv", "text,label\na,yes\nb,c,no\n", "not a table: expected 2 fields in row 2, saw 3"),
        (
            "a.csv",
            'text,label\n"a,yes\nb,no\n',
            "not a table: unexpected end of data in row 1; check its quotes or save it as .jsonl",
        ),
        ("a.csv", "text,label\na,b,yes\n", "the rows have more fields than the header"),
        ("a.parquet", "not parquet", "cannot be read as Parquet"),
        ("a.tsv", "txt\tlabel\na\tyes\n", "no column 'text'; did you mean 'txt'?"),
        ("a.tsv", "words\tlabel\na\tyes\n", "no column 'text'; valid: label, words"),
        (
            "a.csv",
            "text;label\nno, never;no\n",
            "its header has semicolons; expected commas between the columns of a .csv file",
        ),
        (
            "a.tsv",
            "text,label\na,yes\n",
            "its header has commas; expected tabs between the columns of a .tsv file",
        ),
    ],
)
def test_invalid_table_files_are_refused(tmp_path, name, content, expected):
    path = written(tmp_path, name, content)
    assert refusal(path) == f"{path}: {expected}"


def test_a_missing_file_and_a_wrong_encoding_are_refused(tmp_path):
    assert refusal(tmp_path / "no.csv") == f"{tmp_path}/no.csv: no such file"
    for name in ("latin.csv", "latin.jsonl"):
        path = tmp_path / name
        path.write_bytes("text,label\ncafé,yes\n".encode("latin-1"))
        assert refusal(path) == f"{path} line 2: not UTF-8; save it as UTF-8"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"text": "a", "label": "no"}\n{"text": " ", "label": "no"}', "column 'text' is empty"),
        ('{"text": "a", "label": "no"}\n{"label": "no"}', "column 'text' is empty"),
        ('{"text": "a", "label": "no"}\n{"text": "b"}', "column 'label' is empty"),
        ('{"text": "a", "label": "no"}\n{"text": 7, "label": "no"}', "column 'text' is int"),
        ('{"text": "a", "label": "no"}\n[1]', "expected a JSON object on one line"),
        ('{"text": "a", "label": "no"}\n{"text', "expected a JSON object on one line"),
    ],
)
def test_a_bad_row_is_named_by_its_number(tmp_path, content, expected):
    path = written(tmp_path, "a.jsonl", content)
    assert refusal(path).startswith(f"{path} row 2: {expected}")


def test_an_unknown_label_is_named_with_the_valid_ones(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\na\tyes\nb\tmaybe\n")
    expected = f"{path} row 2: label = 'maybe' is none of the labels; valid: no, yes"
    assert refusal(path) == expected
    many = {f"l{i}": i for i in range(12)}
    assert refusal(path, codes=many).endswith(
        "valid: l0, l1, l2, l3, l4, l5, l6, l7, l8, l9 and 2 more"
    )


def test_an_empty_owner_is_refused(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\twho\na\tyes\t \n")
    assert refusal(path, owner="who") == f"{path} row 1: column 'who' is empty"


def test_errors_do_not_quote_texts(tmp_path):
    secret = "my blood pressure was measured on tuesday and is far too high"
    # the text column taken for the label, and a file whose header is missing
    path = written(tmp_path, "a.tsv", f"x\tlabel\nfine\t{secret}\n")
    message = refusal(path, text="x")
    assert "measured on tuesday" not in message
    assert len(re.findall("my blood", message)) == 1  # the label's first 30 characters
    path = written(tmp_path, "b.tsv", f"{secret}\tyes\nfine\tno\n")
    assert "measured on tuesday" not in refusal(path)
