"""Manifest files: every odd CSV, and Parquet with lists, becomes columns or an error that names the line."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ManifestError, ManifestMissingError
from flatout.source import tables
from flatout.source.tables import read_table


def write(folder: Path, content: str | bytes, name: str = "m.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def columns(path: Path, text: tuple[str, ...] = ()) -> dict[str, list[object]]:
    found: dict[str, list[object]] = read_table(path, text).table.to_pydict()
    return found


def test_columns_are_typed_by_all_their_values(tmp_path: Path) -> None:
    path = write(tmp_path, "file,age,score,code,mixed\na.wav,3,1.5,007,1\nb.wav,-4,2,010,x\n")
    assert columns(path) == {
        "file": ["a.wav", "b.wav"],
        "age": [3, -4],
        "score": [1.5, 2.0],
        "code": ["007", "010"],
        "mixed": ["1", "x"],
    }


@pytest.mark.parametrize(
    "value", ["007", "+5", "1_000", "0x10", "1,5", "--3", "00", "1e", "e5", "12345678901234567890x"]
)
def test_what_is_no_plain_number_keeps_its_column_text(tmp_path: Path, value: str) -> None:
    assert columns(write(tmp_path, f'a,b\n1,x\n"{value}",y\n'))["a"] == ["1", value]


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("-0", 0), ("999999999999999999", 10**18 - 1), (" 7 ", 7), ("-12", -12)]
)
def test_integers(tmp_path: Path, text: str, value: int) -> None:
    found = columns(write(tmp_path, f"a,b\n{text},x\n"))["a"]
    assert found == [value]
    assert isinstance(found[0], int)


@pytest.mark.parametrize(
    ("text", "value"), [("1.50", 1.5), (".5", 0.5), ("1e-3", 0.001), ("0.25", 0.25), ("7.", 7.0)]
)
def test_floats(tmp_path: Path, text: str, value: float) -> None:
    assert columns(write(tmp_path, f"a,b\n{text},x\n"))["a"] == [value]


def test_text_columns_stay_text_whatever_they_hold(tmp_path: Path) -> None:
    assert columns(write(tmp_path, "Id,n\n1.10,1\n1.1,2\n"), ("id",)) == {"Id": ["1.10", "1.1"], "n": [1, 2]}


def test_missing_values(tmp_path: Path) -> None:
    found = columns(write(tmp_path, 'a,b,c,d\n1,x,,\nNA,,"",\nnan,y,NA,\n'))
    assert found == {
        "a": [1, None, None],
        "b": ["x", None, "y"],
        "c": [None, "", "NA"],
        "d": [None, None, None],
    }


def test_quotes_newlines_and_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, b'\xef\xbb\xbffile,text\r\n"a,1.wav","line 1\nline ""2"""\r\n\r\nb.wav,\xc3\xbc\r\n')
    assert columns(path) == {"file": ["a,1.wav", "b.wav"], "text": ['line 1\nline "2"', "ü"]}


def test_tsv_and_semicolons(tmp_path: Path) -> None:
    assert columns(write(tmp_path, "a\tb\n1\tx,y\n", "m.tsv")) == {"a": [1], "b": ["x,y"]}
    part = read_table(write(tmp_path, "a;b\n1;x\n"))
    assert part.table.to_pydict() == {"a": [1], "b": ["x"]}
    assert "separated by ';'" in part.notes[0]
    for text, name in (("a\tb\n1\tx\n", "m.csv"), ("a,b\n1,x\n", "m.tsv"), ("a|b\n1|x\n", "m.csv")):
        part = read_table(write(tmp_path, text, name))
        assert part.table.to_pydict() == {"a": [1], "b": ["x"]}
        assert "columns are separated by" in part.notes[0]
    assert read_table(write(tmp_path, "a\nx;y\n")).table.to_pydict() == {"a": ["x;y"]}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sep=;\r\nfile;n;text\r\na.wav;1;x,y\r\n", "m.csv"),
        ('\ufeff"sep=;"\n\nfile;n;text\na.wav;1;"x,y"\n', "m.csv"),
        ("sep=\t\nfile\tn\ttext\na.wav\t1\tx,y\n", "m.csv"),
        ('sep=,\nfile,n,text\na.wav,1,"x,y"\n', "m.csv"),
        ('sep=;\nfile,n,text\na.wav,1,"x,y"\n', "m.csv"),  # it lies
        ("sep=#\nfile#n#text\na.wav#1#x,y\n", "m.tsv"),
    ],
)
def test_a_line_that_names_the_separator_is_no_heading(tmp_path: Path, text: str, name: str) -> None:
    part = read_table(write(tmp_path, text, name))
    assert part.table.to_pydict() == {"file": ["a.wav"], "n": [1], "text": ["x,y"]}
    (note,) = part.notes
    assert "left out line 1 (sep=" in note


def test_lines_are_counted_with_the_one_that_names_the_separator(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="line 4: got 1 values, wanted 2"):
        read_table(write(tmp_path, "sep=;\na;b\n1;2\n3\n"))
    with pytest.raises(ManifestError, match="has no rows"):
        read_table(write(tmp_path, "sep=;\na;b\n"))
    with pytest.raises(ManifestError, match="is empty"):
        read_table(write(tmp_path, "sep=;\n"))
    with pytest.raises(ManifestError, match="line 3: a quote takes the"):
        read_table(write(tmp_path, 'sep=;\na;b\n1;"x\n2;y\n3;z"w\n'))


@pytest.mark.parametrize("word", ["", "NA", "n/a", "<NA>", "nan"])
def test_one_missing_number_leaves_the_others_numbers(tmp_path: Path, word: str) -> None:
    assert columns(write(tmp_path, f"file,n\na,1\nb,{word}\nc,3\n"))["n"] == [1, None, 3]


def test_blanks_around_all_cells(tmp_path: Path) -> None:
    text = "file , label\n a.wav , 1\nb.wav,2\n"
    assert columns(write(tmp_path, text)) == {"file": ["a.wav", "b.wav"], "label": [1, 2]}
    kept = write(tmp_path, "file,text\na.wav, as it is \n")
    assert columns(kept)["text"] == [" as it is "]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("closing", ["", '"', '" one', '""'])
def test_a_quote_that_is_never_closed_swallows_nothing_in_silence(
    tmp_path: Path, closing: str, end: str
) -> None:
    lines = [f"{number}.wav,text {number}" for number in range(9)]
    lines[3] = '3.wav,"text 3'
    lines[6] = f'6.wav,"text 6{closing}' if closing else lines[6]
    with pytest.raises(ManifestError, match=r"line 5: a quote takes the \d lines below along"):
        read_table(write(tmp_path, end.join(["file,text", *lines])))


@pytest.mark.parametrize("end", ["", "\n"])
def test_one_row_is_not_swallowed_either(tmp_path: Path, end: str) -> None:
    for text in (f'file,label\na.wav,x\nb.wav,"y\nc.wav,z{end}', f'file\na.wav\n"b.wav\nc.wav{end}'):
        with pytest.raises(ManifestError, match=r"line 3: a quote takes the 1 lines below along"):
            read_table(write(tmp_path, text))


@pytest.mark.parametrize("blank", ["", "\n", "\r\n\n"])
def test_quotes_within_a_line_are_as_they_were(tmp_path: Path, blank: str) -> None:
    """Common Voice has such sentences; that a blank line stands somewhere says nothing about them."""
    text = f'path\tsentence\na.mp3\t"Hello" he said.\nb.mp3\tx"y\n{blank}'
    assert columns(write(tmp_path, text, "m.tsv"))["sentence"] == ["Hello he said.", 'x"y']


@pytest.mark.parametrize(
    ("text", "name", "column"),
    [
        ("name (a|b)\nx\n", "m.csv", "name (a|b)"),
        ("text, lower\nx\n", "m.tsv", "text, lower"),
        ('"a; b"\nx\n', "m.csv", "a; b"),
    ],
)
def test_a_single_column_stays_one(tmp_path: Path, text: str, name: str, column: str) -> None:
    assert columns(write(tmp_path, text, name)) == {column: ["x"]}


def test_long_cells_of_many_lines_are_read(tmp_path: Path) -> None:
    """Longer than Python's own limit, which other code may count on."""
    note = "a line\n" * 30_000
    limit = csv.field_size_limit()
    assert columns(write(tmp_path, f'file,note\na.wav,"{note}"\n')) == {"file": ["a.wav"], "note": [note]}
    assert csv.field_size_limit() == limit


def test_semicolons_with_quoted_names_as_r_writes_them(tmp_path: Path) -> None:
    text = '"";"file";"age";"a;b"\n"1";"x.wav";007;"u"\n"2";"y,z.wav";008;"v;w"\n'
    found = columns(write(tmp_path, text), text=("age",))
    assert found == {
        "column_1": [1, 2],
        "file": ["x.wav", "y,z.wav"],
        "age": ["007", "008"],
        "a;b": ["u", "v;w"],
    }


def test_header_names_are_stripped_and_nameless_ones_numbered(tmp_path: Path) -> None:
    assert columns(write(tmp_path, ", file , label\n0,a,b\n")) == {
        "column_1": [0],
        "file": ["a"],
        "label": ["b"],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\n", "has no rows"),
        (b"a,b", "has no rows"),
        (b"a,b\n\n\n", "has no rows"),
        (b"a,b,a\n1,2,3\n", "two columns named 'a'"),
        (b"a, a\n1,2\n", "two columns named 'a'"),
        (b"a,b\n1,2\n1,2,3\n", "line 3: got 3 values, wanted 2 as in the heading"),
        (b"a,b\n1,2\n1\n", "line 3: got 1 values, wanted 2 as in the heading"),
        (b'a,b\n"x\ny",2\n\n1,2,3\n', "line 5: got 3 values, wanted 2 as in the heading"),
        (b"a,b\n1,2\n3,\xff\n", "line 3: byte 0xff is not UTF-8"),
        (b"a,\xe4\n1,2\n", "line 1: byte 0xe4 is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "is UTF-16"),
        (b'a,b\n1,2\n"3,4\n5,6\n', "line 3"),
    ],
)
def test_a_broken_csv_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        read_table(write(tmp_path, content))


def test_a_line_longer_than_a_block_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1000)
    with pytest.raises(ManifestError):
        read_table(write(tmp_path, 'a,b\n1,"' + "x" * 5000 + "\n"))


def test_unknown_suffixes_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="ends in one of"):
        read_table(write(tmp_path, "a\n1\n", "m.xlsx"))
    with pytest.raises(ManifestMissingError, match="No such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ManifestMissingError, match="there is no such file or folder"):
        read_table(tmp_path / "recordings")


@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8),
            st.integers(-(10**17), 10**17),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_text_and_integers_come_back_as_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int]]
) -> None:
    quoted = "".join('"' + text.replace('"', '""') + f'",{number}\n' for text, number in rows)
    path = write(tmp_path_factory.mktemp("csv"), "id,n\n" + quoted)
    assert columns(path, ("id",)) == {"id": [text for text, _ in rows], "n": [number for _, number in rows]}


def test_parquet_scalars_lists_and_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "m.parquet"
    table = pa.table(
        {
            "file": pa.array(["a", None]).dictionary_encode(),
            "half": pa.array(np.array([0.5, 2], np.float16)),
            "flag": [True, False],
            "x": pa.array([[1, 2], [3]], pa.list_(pa.int16())),
            "y": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "z": pa.array([[1], None], pa.large_list(pa.int64())),
            "words": [["a"], ["b"]],
            "nested": [{"a": 1}, {"a": 2}],
            "bytes": [b"1", b"2"],
        }
    )
    pq.write_table(table, path)
    part = read_table(path)
    assert part.table.to_pydict() == {"file": ["a", None], "half": [0.5, 2.0], "flag": [True, False]}
    assert part.table["file"].type == pa.large_string()
    assert part.lists is not None
    assert part.lists.names == ("x", "y", "z")
    assert [note.split("'")[1] for note in part.notes] == ["words", "nested", "bytes"]


def test_parquet_of_lists_alone_keeps_its_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1], [2], [3]]}), tmp_path / "m.pq")
    part = read_table(tmp_path / "m.pq")
    assert part.table.num_columns == 0
    assert len(part.lists or ()) == 3


def test_large_row_groups_are_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BIG_GROUP_BYTES", 10)
    pq.write_table(pa.table({"id": ["a"], "x": [list(range(100))]}), tmp_path / "m.parquet")
    assert "every worker holds one" in read_table(tmp_path / "m.parquet").notes[0]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", b"no parquet at all"])
def test_a_broken_parquet_is_a_manifest_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ManifestError, match="cannot be read as Parquet"):
        read_table(write(tmp_path, content, "m.parquet"))


def test_an_empty_parquet_has_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match="has no rows"):
        read_table(tmp_path / "m.parquet")


def test_a_parquet_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"id": ["a"], "x": [[1]]}), path)
    pq.write_table(pa.table({"id": ["b", "c"], "x": [[2], [3]]}), other)
    real = pq.ParquetFile.read

    def read(self: Any, *arguments: Any, **options: Any) -> Any:
        if other.exists():
            other.replace(path)
        return real(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "read", read)
    with pytest.raises(ManifestError, match="was changed while it was read; run the same command again"):
        read_table(path)
    assert read_table(path).table["id"].to_pylist() == ["b", "c"]


@pytest.mark.parametrize("row", [1, 2])
def test_a_cell_may_be_longer_than_python_takes(tmp_path: Path, row: int) -> None:
    texts = ["short", "short"]
    texts[row - 1] = "word " * 40_000
    part = read_table(write(tmp_path, "\n".join(["text", *texts]).encode(), "m.csv"))
    assert part.table["text"].to_pylist() == [text.strip() if part.notes else text for text in texts]


def test_a_short_row_is_named_although_a_long_cell_stands_before_it(tmp_path: Path) -> None:
    rows = ["a,b", f"{'x' * 200_000},1", "y,2", "z"]
    with pytest.raises(ManifestError, match="line 4: got 1 values, wanted 2"):
        read_table(write(tmp_path, "\n".join(rows).encode(), "m.csv"))
    assert csv.field_size_limit() == 131_072


def test_a_cell_of_blanks_under_a_padded_heading_is_empty(tmp_path: Path) -> None:
    part = read_table(write(tmp_path, b'id, text\na, x\nb, \nc,""\n', "m.csv"))
    assert part.table.to_pydict() == {"id": ["a", "b", "c"], "text": ["x", None, ""]}
