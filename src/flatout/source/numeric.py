"""Numbers in plain files: npy, npz and text tables, checked against their headers before memory is taken."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flatout.errors import SampleError
from flatout.source.files import SourceFile
from flatout.source.value import comma_hint
from flatout.types import Array, Decoded, Limits

DELIMITERS = ("\t", ";", ",")
"""Looked for in this order; white space divides the cells of a line that has none of them."""


def decode_npy(file: SourceFile, limits: Limits) -> Decoded:
    """One .npy -> its array as stored, a read-only view of the bytes read.

    Raises:
        SampleError: damaged, truncated, too large, or it holds Python objects.
    """
    return Decoded(parse_npy(file.read_bytes(limits), file.name, limits))


def parse_npy(data: bytes, name: str, limits: Limits) -> Array:
    """The bytes of a .npy -> array. Pickled objects are never loaded."""
    shape, fortran, dtype, start = _parse_npy_header(data, name)
    if dtype.hasobject or dtype.itemsize == 0:
        raise SampleError("decode", f"{name} has dtype {dtype}; objects are never loaded, save numbers")
    if any(size < 0 for size in shape):
        raise SampleError("decode", f"{name} claims the shape {shape}")
    wanted, got = math.prod(shape) * dtype.itemsize, len(data) - start
    _check_bytes(name, wanted, limits)
    if wanted != got:
        raise SampleError("decode", f"{name} has {got:,} bytes of values, {wanted:,} wanted; copy it again")
    try:
        flat: Array = np.frombuffer(data, dtype, offset=start) if wanted else np.empty(0, dtype)
        return flat.reshape(shape, order="F" if fortran else "C")
    except ValueError as error:
        raise SampleError("decode", f"{name}: no array of {dtype} has the shape {shape}: {error}") from error


def _parse_npy_header(data: bytes, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, dtype, and where the values start."""
    stream = io.BytesIO(data)
    # Version 3 exists for structured dtypes with names beyond Latin-1; a store holds none of them.
    readers: dict[tuple[int, int], Callable[..., Any]] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(stream)
        if version not in readers:
            raise ValueError(f"format version {version} is not one of 1.0 and 2.0")
        shape, fortran, dtype = readers[version](stream)
    except Exception as error:  # the header is a Python literal: its parser fails in many ways
        raise SampleError("decode", f"{name} has no readable npy header: {error}") from error
    return shape, fortran, dtype, stream.tell()


def _check_bytes(name: str, wanted: int, limits: Limits) -> None:
    if wanted > limits.max_sample_bytes:
        raise SampleError(
            "decode", f"{name} claims {wanted:,} bytes; max_sample_bytes is {limits.max_sample_bytes:,}"
        )


def decode_npz(file: SourceFile, limits: Limits) -> Decoded:
    """One .npz -> its only array; `info["members"]` maps each name to a function that loads that array.

    With several members `array` is empty, and nothing is decompressed before a member is asked for.

    Raises:
        SampleError: no zip, without arrays, damaged, or larger than the limit once decompressed.
    """
    data = file.read_bytes(limits)
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        found = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
    except Exception as error:  # zipfile lets struct, decoding and value errors of damaged files through
        raise SampleError("decode", f"{file.name} is no readable npz: {error}") from error
    if not found:
        raise SampleError("decode", f"{file.name} holds no arrays")
    load = partial(_load_member, archive, file.name, limits)
    members = {entry.filename.removesuffix(".npy"): partial(load, entry) for entry in found}
    array = load(found[0]) if len(found) == 1 else np.empty(0)
    return Decoded(array, info={"members": members})


def _load_member(archive: zipfile.ZipFile, name: str, limits: Limits, entry: zipfile.ZipInfo) -> Array:
    label = f"{name}[{entry.filename}]"
    _check_bytes(label, entry.file_size, limits)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise SampleError("decode", f"{label} is compressed in another way than NumPy does; save it again")
    try:
        # zipfile stops at the size the entry claims, so that a lying entry cannot inflate further.
        data = archive.read(entry)
    except Exception as error:  # zlib, checksum, password and offset errors
        raise SampleError("decode", f"{label} cannot be decompressed: {error}") from error
    return parse_npy(data, label, limits)


def decode_csv(file: SourceFile, limits: Limits) -> Decoded:
    """A table of numbers in text -> (rows, columns) float64; `info["columns"]`: the header's names, or None.

    Cells are divided by tab, semicolon, comma or white space. Empty lines and what follows a # are skipped.
    The first line is a header when none of its cells is a number.

    Raises:
        SampleError: no table; names line and column of a cell that is no number.
    """
    table = _open_table(file.name, _read_text(file, limits))
    _check_bytes(file.name, (table.text.count("\n") + 1) * table.num_columns * 8, limits)
    return Decoded(table.parse(), info={"columns": table.columns})


@dataclass(frozen=True, slots=True)
class _Table:
    """A table in text whose first lines have been looked at."""

    name: str
    text: str
    delimiter: str | None
    num_columns: int
    columns: list[str] | None
    num_skipped: int
    """Lines before the first row of numbers."""

    def parse(self) -> Array:
        # Per file, x86: 300 x 3 cells take 170 us so and 216 us by pyarrow.csv; 20,000 x 4 take 16 and 4 ms.
        # Series are many and short; one parser, which also knows white space, is worth more than long ones.
        try:
            return np.loadtxt(
                io.StringIO(self.text),
                delimiter=self.delimiter,
                skiprows=self.num_skipped,
                quotechar='"',
                ndmin=2,
            )
        except ValueError as error:
            raise SampleError("decode", self._explain() or f"{self.name}: {error}") from error

    def _explain(self) -> str | None:
        """Where the table is broken: slow, and only asked when it is."""
        for number, line in _meaningful(self.text, self.num_skipped):
            cells = _split(line, self.delimiter)
            if len(cells) != self.num_columns:
                return f"{self.name}, line {number}: {len(cells)} columns, wanted {self.num_columns}"
            for position, cell in enumerate(cells):
                if not _is_number(cell):
                    title = f" ({self.columns[position]})" if self.columns else ""
                    shown = repr(cell[:40]) if cell else "an empty cell (write nan)"
                    place = f"{self.name}, line {number}, column {position + 1}{title}"
                    return f"{place}: {shown} is no number{comma_hint(cell)}"
        return None


def _open_table(name: str, text: str) -> _Table:
    lines = _meaningful(text)
    number, first = next(lines, (0, ""))
    if not first:
        raise SampleError("decode", f"{name} is empty")
    sign = _sniff(first)
    cells = _split(first, sign)
    if all(map(_is_number, cells)):
        return _Table(name, text, sign, len(cells), None, 0)
    _, second = next(lines, (0, ""))
    # The names in a header may hold signs of their own, so the numbers below tell what divides the cells.
    delimiter = _sniff(second)
    num_columns = len(_split(second, delimiter))
    head = _split(first, delimiter) if num_columns > 1 else [first.strip().strip('"')]
    if any(map(_is_number, cells if sign else head)):
        odd = next(cell for cell in cells if not _is_number(cell))
        raise SampleError("decode", f"{name}, line {number}: {odd!r} among numbers; a header has none")
    if not second:
        raise SampleError("decode", f"{name} has a header, but no rows")
    if len(head) != num_columns:
        raise SampleError("decode", f"{name} has {len(head)} column names for {num_columns} columns")
    return _Table(name, text, delimiter, num_columns, head, number)


def _sniff(line: str) -> str | None:
    return next((sign for sign in DELIMITERS if sign in line), None)


def _read_text(file: SourceFile, limits: Limits) -> str:
    try:
        text = file.read_bytes(limits).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SampleError("decode", f"{file.name} is no UTF-8 text: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _meaningful(text: str, num_skipped: int = 0) -> Iterator[tuple[int, str]]:
    """Number (from 1) and content of each line that is neither empty nor a comment."""
    for number, line in enumerate(io.StringIO(text), start=1):
        content = line.partition("#")[0].strip(" \n")
        if number > num_skipped and content.strip():
            yield number, content


def _split(line: str, delimiter: str | None) -> list[str]:
    return [cell.strip().strip('"') for cell in line.split(delimiter)]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
