"""JSON lines (NeMo's manifests) become columns, a block of lines at a time, each error with its line.

Python's parser rather than Arrow's: Arrow turns texts that look like dates into times, refuses a column that
is a number here and a text there, and does not say in which line. About 5 us a line of five values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from flatout.errors import ManifestError

BLOCK_ROWS = 65_536
"""Rows that stand as Python objects at one time."""

_LARGEST = 2**63


def read_json_lines(path: Path) -> tuple[pa.Table, None, tuple[str, ...]]:
    """One row an object. Missing keys are null; a column of mixed or nested values becomes JSON text.

    Raises:
        ManifestError: a line is not a JSON object, with its number.
    """
    text: set[str] = set()
    while True:
        try:
            table = _read_columns(path, text)
        except _BecomesTextError as found:
            text.add(found.name)
        else:
            notes = (f"{path.name}: '{name}' has mixed or nested values; kept as text" for name in sorted(text))
            return table, None, tuple(notes)


class _BecomesTextError(Exception):
    """A column met values that only text can hold beside those of earlier blocks: read again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _read_columns(path: Path, text: set[str]) -> pa.Table:
    blocks: list[pa.Table] = []
    types: dict[str, pa.DataType] = {}
    for rows in _blocks(path):
        columns = {}
        for name in dict.fromkeys([*types, *(key for row in rows for key in row)]):
            values = [row.get(name) for row in rows]
            kind = pa.large_string() if name in text else _type_of(name, values)
            types[name] = _common_type(name, types.get(name, kind), kind)
            columns[name] = _column(path, name, [_as_text(v) for v in values] if name in text else values, kind)
        blocks.append(pa.table(columns))
    schema = pa.schema(list(types.items()))
    return pa.concat_tables([_fitted(block, schema) for block in blocks]) if blocks else schema.empty_table()


def _column(path: Path, name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError as error:
        raise ManifestError(f"{path}: a value of '{name}' is half a character ({error.object!a})") from error


def _blocks(path: Path) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line.strip():
                rows.append(_parse(line, number, path))
            if len(rows) == BLOCK_ROWS:
                yield rows
                rows = []
    if rows:
        yield rows


def _parse(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}, line {number}: not UTF-8 ({error.reason})") from error
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}, line {number}: {_reason(line, error)}") from error
    if not isinstance(row, dict):
        raise ManifestError(f"{path}, line {number}: {_reason(line, None)}")
    return row


def _reason(line: bytes, error: Exception | None) -> str:
    if line.strip() in (b"[", b"{") or line.lstrip().startswith(b"["):
        return "one JSON object a line is wanted, not one document over several lines or a list"
    return f"not JSON ({error})" if error else "one JSON object a line is wanted"


def _type_of(name: str, values: list[Any]) -> pa.DataType:
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return pa.null()
    if kinds == {str}:
        return pa.large_string()
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(v is None or -_LARGEST <= v < _LARGEST for v in values):
        return pa.int64()
    if kinds <= {int, float} and all(type(v) is not int or abs(v) <= 2**53 for v in values):
        return pa.float64()
    raise _BecomesTextError(name)


def _common_type(name: str, known: pa.DataType, new: pa.DataType) -> pa.DataType:
    if known == new or pa.types.is_null(new):
        return known
    if pa.types.is_null(known):
        return new
    if {known, new} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise _BecomesTextError(name)


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _fitted(block: pa.Table, schema: pa.Schema) -> pa.Table:
    """The block with all columns of the whole file, in their final types."""
    columns = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            columns.append(block[name].cast(kind) if name in block.column_names else pa.nulls(len(block), kind))
        except pa.ArrowInvalid as error:  # integers above 2**53 beside floats
            raise _BecomesTextError(name) from error
    return pa.table(columns, schema=schema)
