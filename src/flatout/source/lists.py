"""List columns of Parquet files: the manifest keeps only where each row's lists stand, workers read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from flatout.errors import ManifestError, SampleError
from flatout.source.files import FileState, file_state
from flatout.types import Array, Decoded


@dataclass(frozen=True, slots=True)
class ListCell:
    """Where one list stands: small enough to travel to a worker with its row."""

    path: Path
    row_group: int
    row: int
    """Row within the row group."""
    column: str
    state: FileState = field(compare=False)
    """Of the file when its rows were read."""


@dataclass(frozen=True)
class ListColumns:
    """Where the lists of every manifest row stand; 12 bytes a row however long the lists are."""

    names: tuple[str, ...]
    files: tuple[Path, ...]
    group_starts: tuple[NDArray[np.int64], ...]
    """For each file the first row of each row group, and the number of rows."""
    file_of: NDArray[np.int32]
    """File of each manifest row; -1 for rows of a manifest without lists."""
    row_of: NDArray[np.int64]
    """Row in that file."""
    states: tuple[FileState, ...]
    """Of each file when its rows were read."""

    @classmethod
    def of_file(
        cls, path: Path, names: Sequence[str], metadata: pq.FileMetaData, state: FileState
    ) -> ListColumns:
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        num_rows = metadata.num_rows
        places = np.zeros(num_rows, np.int32), np.arange(num_rows)
        return cls(tuple(names), (path,), (starts,), *places, (state,))

    def __len__(self) -> int:
        return len(self.file_of)

    def take(self, indices: NDArray[np.int64]) -> ListColumns:
        return replace(self, file_of=self.file_of[indices], row_of=self.row_of[indices])

    def cells(self, index: int) -> dict[str, ListCell | None]:
        """The cells of one manifest row by column; None where its manifest has no lists."""
        file = int(self.file_of[index])
        if file < 0:
            return dict.fromkeys(self.names)
        starts, row = self.group_starts[file], int(self.row_of[index])
        group = int(np.searchsorted(starts, row, side="right")) - 1
        within = row - int(starts[group])
        place = self.files[file], group, within
        return {name: ListCell(*place, name, self.states[file]) for name in self.names}

    def first_lengths(self, num_rows: int = 50) -> dict[str, list[int | None]]:
        """Lengths of the first lists of the first file by column; None for a missing list."""
        with pq.ParquetFile(self.files[0]) as file:
            names = [name for name in self.names if name in file.schema_arrow.names]
            batch = next(file.iter_batches(num_rows, columns=names), None)
        if batch is None:
            return {}
        return {name: pc.list_value_length(batch[name]).to_pylist() for name in names}

    def digests(self, name: str) -> NDArray[np.uint64]:
        """64-bit hash of each row's list in one column: dtype, values and missing values.

        Lists that cannot be read share one hash; their rows fail later, one by one.

        Raises:
            ManifestError: a file is not the one any more whose rows were read.
        """
        found = np.zeros(len(self), np.uint64)
        for file, group, rows in self._by_group():
            start = int(self.group_starts[file][group])
            try:
                lists = _read_column(self.files[file], group, name, self.states[file])
            except ChangedFileError as error:
                raise ManifestError(error.reason) from error
            except SampleError:
                continue
            hashes = [lists.hash_of(int(self.row_of[i]) - start) for i in rows]
            found[rows] = np.frombuffer(b"".join(hashes), "<u8")
        return found

    def _by_group(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """(file, row group, manifest rows in it) for every row group in use."""
        for file, starts in enumerate(self.group_starts):
            rows = np.flatnonzero(self.file_of == file)
            groups = np.searchsorted(starts, self.row_of[rows], side="right") - 1
            order = np.argsort(groups, kind="stable")
            for part in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
                if len(part):
                    yield file, int(groups[part[0]]), rows[part]


def join_lists(parts: Sequence[tuple[ListColumns | None, int]]) -> ListColumns | None:
    """The list columns of several manifests on end; each comes with its number of rows."""
    present = [lists for lists, _ in parts if lists is not None]
    if not present:
        return None
    names = tuple(dict.fromkeys(name for lists in present for name in lists.names))
    files: list[Path] = []
    file_of, row_of = [], []
    for lists, num_rows in parts:
        shift = len(files)
        files += lists.files if lists else ()
        file_of.append(lists.file_of + shift if lists else np.full(num_rows, -1))
        row_of.append(lists.row_of if lists else np.zeros(num_rows))
    return ListColumns(
        names,
        tuple(files),
        tuple(starts for lists in present for starts in lists.group_starts),
        np.concatenate(file_of).astype(np.int32),
        np.concatenate(row_of).astype(np.int64),
        tuple(state for lists in present for state in lists.states),
    )


def read_cells(cells: Mapping[str, ListCell]) -> Decoded:
    """The lists of one row as one array (T, C), a channel a column in the order given.

    The row group last read stays in memory, only the columns asked for: rows in file order cost one read a
    group. A worker therefore needs the memory of one row group of these columns.

    Raises:
        SampleError: a list is missing, has missing values, or differs in length from the others.
    """
    columns = {name: _read_column(c.path, c.row_group, c.column, c.state) for name, c in cells.items()}
    arrays = {name: columns[name].get(c.row, name) for name, c in cells.items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise SampleError("decode", f"list columns of one sequence differ in length: {told}")
    return Decoded(np.stack(list(arrays.values()), axis=1), info={"columns": list(arrays)})


@dataclass(frozen=True, slots=True)
class _Lists:
    """All lists of one column in one row group, as flat arrays."""

    values: Array
    offsets: NDArray[np.int64]
    present: NDArray[np.bool_]
    missing: NDArray[np.bool_] | None
    """Marks missing values among `values`; None where there are none."""

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> _Lists:
        lists = column.combine_chunks()
        if isinstance(lists, pa.ChunkedArray):  # no chunk at all, or more than one can hold
            lists = pa.concat_arrays(lists.chunks)
        value_type = lists.type.value_type
        lists = lists.cast(pa.large_list(value_type))
        values = lists.values
        missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        if missing is not None:
            values = values.fill_null(False if pa.types.is_boolean(value_type) else 0)
        return cls(
            values.to_numpy(zero_copy_only=False),
            lists.offsets.to_numpy(),
            lists.is_valid().to_numpy(zero_copy_only=False),
            missing,
        )

    def get(self, row: int, name: str) -> Array:
        if not self.present[row]:
            raise SampleError("decode", f"column '{name}' has no list in this row")
        start, end = self.offsets[row], self.offsets[row + 1]
        if self.missing is not None and self.missing[start:end].any():
            at = int(np.argmax(self.missing[start:end]))
            raise SampleError("decode", f"column '{name}' has a missing value at position {at} of its list")
        array: Array = self.values[start:end]
        return array

    def hash_of(self, row: int) -> bytes:
        start, end = self.offsets[row], self.offsets[row + 1]
        if not self.present[row]:
            return blake3.blake3(b"no list").digest(8)
        state = blake3.blake3(self.values.dtype.str.encode() + self.values[start:end].tobytes())
        if self.missing is not None and self.missing[start:end].any():
            state.update(self.missing[start:end].tobytes())
        return state.digest(8)


_group: tuple[tuple[Any, ...], dict[str, _Lists]] = ((), {})
"""The row group last read by this process and the columns of it read so far."""


class ChangedFileError(SampleError):
    """Other rows stand where this one stood."""

    def __init__(self, path: Path) -> None:
        super().__init__("find", f"{path} was changed after its rows were read; run prepare again")


def _read_column(path: Path, row_group: int, column: str, state: FileState) -> _Lists:
    """One column of one row group, from memory where it was the last group read.

    Raises:
        ChangedFileError: the file is not the one any more whose rows were read: what stands there may be
            another row's, and would be taken for this one's for good.
    """
    global _group
    known, columns = _group
    if known != (path, row_group, state):
        columns = {}
        _group = ((path, row_group, state), columns)
    if column in columns:
        return columns[column]
    try:
        _refuse_changed(path, state)  # or it would be called damaged
        with pq.ParquetFile(path) as file:
            table = file.read_row_group(row_group, columns=[column])
        found = _Lists.of(table[column])
        _refuse_changed(path, state)
    except FileNotFoundError as error:
        raise SampleError("find", f"{path}: {error.strerror}") from error
    except (OSError, pa.ArrowException, IndexError, KeyError) as error:
        raise SampleError("decode", f"{path}, row group {row_group}, column '{column}': {error}") from error
    columns[column] = found
    return found


def _refuse_changed(path: Path, state: FileState) -> None:
    if file_state(path) != state:
        raise ChangedFileError(path)
