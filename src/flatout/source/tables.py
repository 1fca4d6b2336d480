"""Manifest files become columns: CSV, TSV, Parquet and JSON lines, with errors that name the line.

Types of CSV and TSV columns: everything is read as text first; a column becomes int64 or float64 only if
every value is such a number in its plain form. One `007`, one `+5` or one word, and all of it stays text.
Empty cells are missing; in columns of numbers so are NA, n/a, NaN, null and their like. `""` in quotes is an
empty text. Columns named in `text_columns` (keys, groups, paths; lower case) always stay text.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from flatout.errors import ManifestError, ManifestMissingError
from flatout.source.arrow import MISSING_WORDS
from flatout.source.files import file_state
from flatout.source.jsonlines import read_json_lines
from flatout.source.lists import ListColumns
from flatout.units import bytes_text

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq", ".jsonl", ".jsonlines", ".json", ".ndjson")
"""Manifest files by their lower-case suffix."""

DELIMITERS = (";", "\t", "|", ",")
"""Tried where a heading is one name with the delimiter of the file's suffix."""

SEPARATOR_LINE = re.compile(r'"?sep=([^\r\n])"?\s*')
"""What may stand above the heading: Excel reads a file by it."""

MOST_CELL_CHARS = 2**31 - 1
"""The most that Python's csv takes on every system."""

BLOCK_BYTES = 16 << 20
"""Longest CSV line; a longer one is a quote that was never closed."""

BIG_GROUP_BYTES = 1 << 30
"""Row groups above this size are worth a word: every worker holds one."""

_INTEGER = r"^-?(0|[1-9][0-9]{0,17})$"
_NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$|^-?(inf|Inf|infinity|Infinity)$"
_WANTED = "scalars and lists of numbers are read"


@dataclass(frozen=True)
class TablePart:
    """What one manifest file holds: scalar columns, where its list columns stand, what to say about it."""

    table: pa.Table
    lists: ListColumns | None = None
    notes: tuple[str, ...] = ()


def read_table(path: Path, text_columns: Collection[str] = ()) -> TablePart:
    """The columns of one manifest file; its suffix says the format.

    Raises:
        ManifestMissingError: no such file.
        ManifestError: unknown suffix, damaged content (with the line), no rows.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES and not path.exists():
        raise ManifestMissingError(f"{path}: there is no such file or folder")
    if suffix not in SUFFIXES:
        raise ManifestError(f"{path}: a manifest ends in one of {', '.join(SUFFIXES)}, or is a folder")
    try:
        if suffix in (".csv", ".tsv"):
            with _cells_of_any_length():
                part = _read_csv(path, "\t" if suffix == ".tsv" else ",", text_columns)
        elif suffix in (".parquet", ".pq"):
            part = _read_parquet(path)
        else:
            part = TablePart(*read_json_lines(path))
    except FileNotFoundError as error:
        raise ManifestMissingError(f"{path}: {error.strerror or error}") from error
    except OSError as error:
        raise ManifestError(f"{path}: {error.strerror or error}") from error
    if not part.table.num_rows:
        raise ManifestError(f"{path} has no rows")
    return part


def _read_csv(path: Path, delimiter: str, text_columns: Collection[str]) -> TablePart:
    usual = delimiter
    separator = _separator_of(path)
    names, delimiter = _read_header(path, separator or usual)
    try:
        table = pacsv.read_csv(
            path,
            pacsv.ReadOptions(block_size=BLOCK_BYTES, skip_rows=int(separator is not None)),
            pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            pacsv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.large_string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise _explain(path, delimiter, len(names), error) from error
    _check_quotes(path, delimiter, table.num_rows)
    plain = _plain_names(names, path)
    cells = table.itercolumns()
    if any(name != name.strip() for name in names):  # "file , label": the values stand like that, too
        cells = map(_trimmed, cells)
    columns = [
        column if name.lower() in text_columns else _typed(column)
        for name, column in zip(plain, cells, strict=True)
    ]
    told = "" if separator is None else f"left out line 1 (sep={separator}); "
    notes = (f"{path.name}: {told}columns are separated by {delimiter!r}",)
    return TablePart(pa.table(columns, names=plain), notes=notes if told or delimiter != usual else ())


def _separator_of(path: Path) -> str | None:
    """The delimiter that a first line `sep=;` names; None where there is no such line."""
    with open(path, newline="", encoding="utf-8-sig", errors="replace") as file:
        found = SEPARATOR_LINE.fullmatch(file.readline(80))
    return None if found is None else found[1]


def _read_header(path: Path, delimiter: str) -> tuple[list[str], str]:
    """Column names as written, and the delimiter: Excel writes `;` instead of `,` in half of Europe."""
    try:
        names = next(_rows(path, delimiter), None)
        if names and len(names) == 1:
            delimiter = next((other for other in DELIMITERS if _divides(path, other)), delimiter)
            names = next(_rows(path, delimiter), None)
    except UnicodeDecodeError:
        raise _bad_encoding(path) from None
    except csv.Error as error:
        raise ManifestError(f"{path}, line 1: {error}") from error
    if not names:
        raise ManifestError(f"{path} is empty; a first line with column names is wanted")
    return names, delimiter


def _rows(path: Path, delimiter: str) -> Iterator[list[str]]:
    """The cells of each line that is not empty, without their quotes; from the heading on."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        if _separator_of(path) is not None:
            next(file)
        yield from csv.reader((line for line in file if line.strip()), delimiter=delimiter)


def _divides(path: Path, delimiter: str) -> bool:
    """Whether a delimiter cuts the heading and the row below into as many cells, more than one."""
    heading, row = [*islice(_rows(path, delimiter), 2), [], []][:2]
    return len(heading) == len(row) > 1


@contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """Arrow reads the table and has no such limit: whoever explains what is wrong with it may have none."""
    limit = csv.field_size_limit(MOST_CELL_CHARS)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _trimmed(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without blanks around the values; a cell of blanks alone is empty, one of `""` stays a text."""
    trimmed = pc.utf8_trim_whitespace(cells)
    is_blank = pc.and_(pc.equal(trimmed, ""), pc.not_equal(cells, ""))
    return pc.if_else(is_blank, None, trimmed)


def _plain_names(names: list[str], path: Path) -> list[str]:
    """Names without surrounding blanks; a nameless column (pandas' index) is called column_N."""
    plain = [name.strip() or f"column_{i}" for i, name in enumerate(names, 1)]
    twice = next((name for name in plain if plain.count(name) > 1), None)
    if twice is not None:
        raise ManifestError(f"{path} has two columns named '{twice}'; rename one")
    return plain


def _typed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as int64 or float64 where all its values are plain numbers, else as it is."""
    if not _holds(column.slice(0, 1000), _NUMBER):  # spares the whole scan for most columns of text
        return column
    if not _holds(column, _NUMBER):
        return column
    numbers = pc.if_else(pc.is_in(pc.utf8_trim_whitespace(column), MISSING_WORDS), None, column)
    if numbers.null_count == len(numbers):
        return column
    kind = pa.int64() if _holds(column, _INTEGER) else pa.float64()
    return pc.utf8_trim_whitespace(numbers).cast(kind)


def _holds(column: pa.ChunkedArray, pattern: str) -> bool:
    """Whether every value is missing or matches."""
    trimmed = pc.utf8_trim_whitespace(column)
    fits = pc.or_(pc.match_substring_regex(trimmed, pattern), pc.is_in(trimmed, MISSING_WORDS))
    return bool(pc.all(fits.fill_null(True)).as_py() in (True, None))


def _explain(path: Path, delimiter: str, num_columns: int, error: pa.ArrowInvalid) -> ManifestError:
    """The first thing wrong in a CSV that Arrow refused, found by a slow second reading."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            if _separator_of(path) is not None:
                next(reader)
            line, num_rows = reader.line_num + 1, 0
            for row in reader:
                if row and len(row) != num_columns:
                    return ManifestError(
                        f"{path}, line {line}: got {len(row)} values, wanted {num_columns} as in the heading; "
                        f"mend the line, or quote values that hold a '{delimiter}'"
                    )
                line, num_rows = reader.line_num + 1, num_rows + bool(row)
    except UnicodeDecodeError:
        return _bad_encoding(path)
    except csv.Error as problem:
        return ManifestError(f"{path}, line {line}: {problem} (a quote that is never closed?)")
    if num_rows <= 1:
        return ManifestError(f"{path} has no rows")
    return ManifestError(f"{path}: {error}")


def _check_quotes(path: Path, delimiter: str, num_rows: int) -> None:
    """A quote that is never closed swallows the rows below it, and nobody would miss them.

    Only where there are more lines than rows: then some cell holds one, or is meant to. 1 GB/s to find out.

    Raises:
        ManifestError: with the line where the cell begins.
    """
    if not any(b'"' in block for block in _blocks(path)):
        return
    num_ends, num_returns, last = 0, 0, b""
    for block in _blocks(path):
        num_ends += block.count(b"\n")
        num_returns += block.count(b"\r")
        last = block[-1:]
    num_lines = max(num_ends, num_returns) + (last not in b"\r\n")
    if num_lines <= num_rows + 1:
        return
    with open(path, newline="", encoding="utf-8-sig") as file:
        _check_long_rows(path, file, delimiter)


def _blocks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _check_long_rows(path: Path, file: Iterable[str], delimiter: str) -> None:
    """Rows of several lines are read once more, by the letter of the format."""
    lines: list[str] = []

    def remembered() -> Iterator[str]:
        for line in file:
            lines.append(line)
            yield line

    reader = csv.reader(remembered(), delimiter=delimiter)
    for _ in reader:
        if len(lines) > 1:
            try:
                list(csv.reader(lines, delimiter=delimiter, strict=True))
            except csv.Error as error:
                line = reader.line_num - len(lines) + 1
                raise ManifestError(
                    f"{path}, line {line}: a quote takes the {len(lines) - 1:,} lines below along ({error}); "
                    "close it, or write quotes inside a cell twice"
                ) from error
        lines.clear()


def _bad_encoding(path: Path) -> ManifestError:
    """Names the first line that is not UTF-8."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                return ManifestError(f"{path} is UTF-16; save it as UTF-8")
            try:
                line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                return ManifestError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8; save it as UTF-8")
    return ManifestError(f"{path} is not UTF-8")


def _read_parquet(path: Path) -> TablePart:
    try:
        state = file_state(path)
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = [name for name in schema.names if not name.startswith("__index_level_")]
            scalars = [name for name in names if _is_scalar(schema.field(name).type)]
            lists = [name for name in names if _is_number_list(schema.field(name).type)]
            table = _plain_types(file.read(columns=scalars)) if scalars else _no_columns(file.metadata)
            metadata = file.metadata
        if file_state(path) != state:
            raise ManifestError(f"{path} was changed while it was read; run the same command again")
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ManifestError(f"{path} cannot be read as Parquet: {str(error).strip()}") from error
    if len(set(names)) < len(names):
        raise ManifestError(f"{path} has two columns of one name; rename one")
    others = [name for name in names if name not in scalars and name not in lists]
    notes = [f"{path.name}: left out column '{n}' ({schema.field(n).type}); {_WANTED}" for n in others]
    where = ListColumns.of_file(path, lists, metadata, state) if lists else None
    return TablePart(table, where, (*notes, *_memory_note(path, metadata, lists)))


def _no_columns(metadata: pq.FileMetaData) -> pa.Table:
    """A table of as many rows without columns: a Parquet of lists alone."""
    return pa.table({"": pa.nulls(metadata.num_rows)}).select([])


def _plain_types(table: pa.Table) -> pa.Table:
    """Dictionaries decoded, text as large_string (2 GiB of paths do not fit into string), half as float."""
    columns = []
    for column in table.itercolumns():
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if _is_text(kind):
            kind = pa.large_string()
        columns.append(column.cast(pa.float32() if pa.types.is_float16(kind) else kind))
    return pa.table(columns, names=table.column_names)


def _memory_note(path: Path, metadata: pq.FileMetaData, lists: list[str]) -> list[str]:
    """A warning where one row group of the lists is large, because each worker holds one."""
    largest = 0
    for i in range(metadata.num_row_groups if lists else 0):
        group = metadata.row_group(i)
        columns = (group.column(j) for j in range(group.num_columns))
        sizes = [c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in lists]
        largest = max(largest, sum(sizes))
    if largest < BIG_GROUP_BYTES:
        return []
    return [f"{path.name}: a row group of {bytes_text(largest)}; every worker holds one in memory"]


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_scalar(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_scalar(kind.value_type)
    tests = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_temporal,
        pa.types.is_decimal, pa.types.is_null, _is_text,
    )  # fmt: skip
    return any(test(kind) for test in tests)


def _is_number_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(test(kind) for test in tests):
        return False
    values = kind.value_type
    return bool(pa.types.is_integer(values) or pa.types.is_floating(values) or pa.types.is_boolean(values))
