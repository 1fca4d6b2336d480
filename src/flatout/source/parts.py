"""One manifest file or folder as a part, and several parts (one per split) joined into one table."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from flatout.errors import ManifestError
from flatout.source.arrow import join_text, one_piece
from flatout.source.columns import find_path_columns, kinds_by_suffix, suffix_of
from flatout.source.folders import read_folder
from flatout.source.lists import ListColumns, join_lists
from flatout.source.splits import is_split_name, normalise_split, split_order
from flatout.source.tables import SUFFIXES, read_table


@dataclass(frozen=True)
class Part:
    """A table, the folder that its paths start from, and what to say about it."""

    name: str
    table: pa.Table
    base: Path
    path_columns: tuple[str, ...]
    lists: ListColumns | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.lists) if self.lists else int(self.table.num_rows)

    def with_split(self, split: str, column: str) -> Part:
        """The part with every row in one split; a column that says otherwise is an error."""
        fill = pa.repeat(pa.scalar(split, pa.large_string()), self.num_rows)
        if column not in self.table.column_names:
            table = (
                self.table.append_column(column, fill) if self.table.num_columns else pa.table({column: fill})
            )
            return replace(self, table=table)
        for value in self.table[column].unique().to_pylist():
            if value is not None and normalise_split(str(value)) != split:
                number = pc.index(self.table[column], value).as_py() + 1
                raise ManifestError(
                    f"{self.name}, row {number}: column '{column}' says '{value}', "
                    f"but this manifest is given as '{split}'"
                )
        return replace(self, table=self.table.set_column(self.table.column_names.index(column), column, fill))


def split_tables(path: Path) -> dict[str, Path]:
    """The manifests of a folder that are named after splits: train.csv, manifest_val.jsonl. Else empty."""
    if not path.is_dir():
        return {}
    found: dict[str, Path] = {}
    for file in sorted(path.iterdir()):
        word = re.sub(r"manifest|[_-]", "", file.stem.lower())
        if file.suffix.lower() in SUFFIXES and is_split_name(word):
            if normalise_split(word) in found:
                return {}
            found[normalise_split(word)] = file
    return dict(sorted(found.items(), key=lambda item: split_order(item[0])))


def read_part(path: Path, base: Path | None, text_columns: Collection[str], allow_outside: bool) -> Part:
    """One manifest file, or a folder tree. Paths start from `base`, or where the manifest stands."""
    if path.is_dir():
        return _read_tree(path, base, allow_outside)
    found = read_table(path, text_columns)
    start = base or path.parent
    if path.suffix.lower() in (".csv", ".tsv"):
        _refuse_rows_as_heading(path, found.table.column_names, start)
    columns, notes = find_path_columns(found.table, start, allow_outside)
    return Part(path.name, found.table, start, tuple(columns), found.lists, (*found.notes, *notes))


def _refuse_rows_as_heading(path: Path, names: Sequence[str], base: Path) -> None:
    """Without a heading the first sample would give the columns their names, and be lost.

    Raises:
        ManifestError: a name is a file that is there.
    """
    for name in names:
        if suffix_of(name) in kinds_by_suffix() and os.path.isfile(base / name):  # noqa: PTH113  of any length
            raise ManifestError(
                f"{path} has no heading: its first line names the file '{name}'. Put a line with names of "
                "columns above it, such as file,label"
            )


def _read_tree(path: Path, base: Path | None, allow_outside: bool) -> Part:
    tree = read_folder(path, allow_outside)
    part = Part(path.name, tree.table, tree.base, tree.path_columns, notes=tree.notes)
    if base is None or base == part.base:
        return part
    if not part.base.is_relative_to(base):
        raise ManifestError(f"base_path {base} does not hold the folder {path}; leave base_path out")
    return _moved(part, base, allow_outside)


def join_parts(parts: Sequence[Part], allow_outside: bool) -> Part:
    """The rows of all parts on end. Parts of different folders get their common folder as base.

    A path then still may not leave the folder of its own manifest (unless allowed).
    """
    try:
        base = Path(os.path.commonpath([part.base for part in parts]))
    except ValueError as error:  # two Windows drives
        raise ManifestError("the manifests stand on different drives; set base_path") from error
    parts = [_moved(part, base, allow_outside) for part in parts]
    return Part(
        ", ".join(part.name for part in parts),
        _joined([part.table for part in parts]),
        base,
        tuple(dict.fromkeys(name for part in parts for name in part.path_columns)),
        join_lists([(part.lists, part.num_rows) for part in parts]),
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def _moved(part: Part, base: Path, allow_outside: bool) -> Part:
    """The part with its relative paths starting from `base`, a folder above its own."""
    if part.base == base:
        return part
    table = part.table
    for name in part.path_columns:
        if pa.types.is_large_string(table[name].type):
            moved = _moved_paths(one_piece(table[name]), part.base, base, allow_outside)
            table = table.set_column(table.column_names.index(name), name, moved)
    return replace(part, table=table, base=base)


def _moved_paths(paths: pa.Array, old: Path, new: Path, allow_outside: bool) -> pa.Array:
    below = old.relative_to(new).as_posix()
    own = pc.replace_substring_regex(paths, "^" + re.escape(old.as_posix()) + "/+", f"{below}/")
    is_own = pc.not_equal(own, paths)
    is_absolute = pc.match_substring_regex(paths, r"^([/\\~]|[A-Za-z]:)")
    # An absolute path outside its own folder may be inside the common one: ".." has it refused.
    kept = paths if allow_outside else join_text("..", paths, by="/")
    relative = join_text(below, paths, by="/")
    moved = pc.if_else(is_own, own, pc.if_else(is_absolute, kept, relative))
    return pc.if_else(pc.equal(paths, ""), paths, moved)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables on end; columns that differ in type become float64 or text, absent ones null."""
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    columns = {}
    for name in names:
        kind = _common_type([table[name].type for table in tables if name in table.column_names])
        chunks = []
        for table in tables:
            column = (
                table[name]
                if name in table.column_names
                else pa.chunked_array([pa.nulls(table.num_rows, kind)])
            )
            chunks += column.cast(kind).chunks
        columns[name] = pa.chunked_array(chunks, kind)
    return pa.table(columns)


def _common_type(kinds: Sequence[pa.DataType]) -> pa.DataType:
    distinct = {kind for kind in kinds if not pa.types.is_null(kind)}
    if len(distinct) <= 1:
        return distinct.pop() if distinct else pa.null()
    if all(pa.types.is_signed_integer(kind) for kind in distinct):
        return pa.int64()
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in distinct):
        return pa.float64()
    return pa.large_string()
