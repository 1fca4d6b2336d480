"""The manifest: one row a source sample, in columns, with a stable key each, whatever it was read from."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flatout.config.fields import AnyField
from flatout.config.source import SourceSettings
from flatout.errors import ManifestError, ManifestMissingError, SampleError
from flatout.source.columns import NOWHERE
from flatout.source.digests import digest_rows
from flatout.source.key_rule import KeyRule
from flatout.source.keys import ID_NAMES, choose_keys
from flatout.source.label_sets import read_label_set
from flatout.source.lists import ListColumns
from flatout.source.parts import Part, join_parts, read_part, split_tables
from flatout.source.paths import find_path
from flatout.source.splits import any_split, normalise_split
from flatout.source.tarred import TarIndex, expand_tars, index_tars
from flatout.source.wanted import check_columns
from flatout.types import Row, RowBlock

PATH_KINDS = ("volume", "image", "mask", "signal", "array")
"""Kinds of fields whose column holds a path (a sequence may hold lists instead)."""

SPLIT_NAMES = ("split", "subset", "partition", "set")
"""Columns taken as the split when all their values are usual split names."""

TEXT_NAMES = ("text", "transcript", "transcription", "caption", "report", "sentence")
"""Columns taken as text, even if all of them are digits."""

AUDIO_COLUMNS = ("audio_filepath", "audio_file", "audio", "path", "file")
"""Columns that may name the members of tarred audio, the first found first."""


@dataclass(frozen=True)
class Manifest:
    """Rows of scalars in columns: 10 million rows of a path and a label take about 1 GB."""

    table: pa.Table
    """One row a source sample, scalar columns only."""
    keys: pa.Array
    """Unique texts in row order; a row keeps its key when others are added."""
    base_path: Path
    """Folder that the paths start from."""
    path_columns: tuple[str, ...]
    """Columns whose values are paths, to be given to `resolve_path`, and that of the tar members."""
    lists: ListColumns | None = None
    """Where the rows' lists stand (Parquet)."""
    tar: TarIndex | None = None
    """Where the rows' members stand (tarred audio)."""
    notes: tuple[str, ...] = ()
    """What was guessed or passed over, in plain words."""
    split_column: str | None = None
    """Column that names each row's split, where the settings or the source itself have one."""
    key_rule: str | None = None
    """Where the keys come from, see `KeyRule`: given to the next run, it keeps every row's key."""
    tables: tuple[Path, ...] = ()
    """Files that the rows stand in; none where they are the files of a folder."""
    cycle_columns: tuple[str, ...] = ()
    """Columns with a row's cycles: a cell is start times, or a path if it cannot be these."""

    @property
    def place(self) -> str:
        """What it was read from, for whoever is told of it."""
        return ", ".join(path.name for path in self.tables) or str(self.base_path)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> list[str]:
        """All columns, those of lists last."""
        return [*self.table.column_names, *(self.lists.names if self.lists else ())]

    def rows(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> list[Row]:
        """These rows as keys and Python values: None for null, ListCell for lists, SourceFile for members."""
        return self.block(indices).rows()

    def block(
        self,
        indices: Sequence[int] | NDArray[np.integer[Any]],
        digests: NDArray[np.uint64] | None = None,
        key_hashes: NDArray[np.uint64] | None = None,
        wanted: Container[str] | None = None,
    ) -> RowBlock:
        """The same as columns, with these digests and hashes of their keys; only those wanted, if some are."""
        picked = np.asarray(indices, np.int64)
        names = [name for name in self.table.column_names if wanted is None or name in wanted]
        table = self.table.select(names).take(pa.array(picked)) if names else None
        columns = {} if table is None else {name: table[name].to_pylist() for name in names}
        if self.tar is not None and self.tar.column in columns:
            members = zip(picked.tolist(), columns[self.tar.column], strict=True)
            columns[self.tar.column] = [
                None if name is None else self.tar.file_of(at, name) for at, name in members
            ]
        listed = [name for name in self.lists.names if wanted is None or name in wanted] if self.lists else []
        if self.lists is not None and listed:
            cells = [self.lists.cells(at) for at in picked.tolist()]
            columns |= {name: [each[name] for each in cells] for name in listed}
        return RowBlock(self.keys.take(pa.array(picked)).to_pylist(), columns, digests, key_hashes)

    def cells(self, column: str, indices: Sequence[int] | NDArray[np.integer[Any]]) -> list[Any]:
        """What these rows hold in a path column: None for no path, SourceFile for members of a tar."""
        picked = np.asarray(indices, np.int64)
        values: list[Any] = self.table[column].take(pa.array(picked)).to_pylist()
        if column in self.cycle_columns:
            values = [value if self.names_file(column, value) else None for value in values]
        if self.tar is None or column != self.tar.column:
            return values
        pairs = zip(picked.tolist(), values, strict=True)
        return [None if value is None else self.tar.file_of(at, value) for at, value in pairs]

    def names_file(self, column: str, value: Any) -> bool:
        """Whether the value of a path column is one."""
        return value is not None and (column not in self.cycle_columns or _is_cycle_path(value))

    def digests(self, columns: Sequence[str], rows: NDArray[np.int64] | None = None) -> NDArray[np.uint64]:
        """A hash of each row's values in these columns, lists by content; see `digest_rows`.

        Args:
            rows: those that are wanted, in this order; all by default.
        """
        if rows is None:
            return digest_rows(self.table, columns, self.lists)
        there = self.table.column_names
        names = [name for name in there if name in set(columns)] or there[:1]  # one tells their number
        table = self.table.select(names).take(pa.array(rows)) if names else self.table
        return digest_rows(table, columns, self.lists.take(rows) if self.lists else None)

    def take(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> Manifest:
        """A manifest of these rows, in this order."""
        picked = np.asarray(indices, np.int64)
        return replace(
            self,
            table=self.table.take(pa.array(picked)) if self.table.num_columns else self.table,
            keys=self.keys.take(pa.array(picked)),
            lists=self.lists.take(picked) if self.lists else None,
            tar=self.tar.take(picked) if self.tar else None,
        )


def read_manifest(source: SourceSettings) -> Manifest:
    """The manifest that the settings name: a file, a folder, or one of these per split.

    `fields` say which columns hold paths; where others are guessed, that is found out.
    Keys come from `key_column`, or follow `key_rule` strictly; without either a rule is chosen.

    Raises:
        ManifestError: it cannot be read, contradicts itself, or has rows that the key rule does not fit.
        ManifestMissingError: it is not there, or `base_path` is not.
        ConfigError: it lacks columns that the settings name.
    """
    fields = source.fields
    named = _named(source)
    parts = [_read(path, split, source) for split, path in named]
    if source.base_path is None and len({part.base for part in parts}) > 1:
        joined = join_parts(parts, source.allow_outside_base)
    else:
        joined = join_parts(parts, True) if len(parts) > 1 else parts[0]
    notes = list(joined.notes)
    tar = None
    if source.tarred_audio_filepaths:
        column = _audio_column(joined.table, fields)
        tars = expand_tars(source.tarred_audio_filepaths, joined.base)
        tar, tar_notes = index_tars(joined.table, column, tars, *_parts_of_files(parts, joined.base, source))
        # The names of members lead nowhere beside the tars, and what is missing in these was just noted.
        notes = [note for note in notes if not note.endswith(NOWHERE)] + tar_notes
        joined = replace(joined, path_columns=tuple(dict.fromkeys([column, *joined.path_columns])))
    # Where fields are guessed one may have the name of a guess, whose column is another.
    settled = {} if source.guesses_fields else fields
    check_columns(joined.table.column_names, settled, source, joined.lists.names if joined.lists else ())
    cycles = tuple(name for name in _cycle_columns(fields) if name in joined.table.column_names)
    paths = [name for name in joined.path_columns if name not in cycles or not _holds_times(joined.table[name])]
    keys, rule = choose_keys(joined.table, paths, source.key_column, joined.lists, source.key_rule)
    split_column = _split_column(joined.table, source, named)
    notes += [rule.told, *_told_split(joined.table, split_column)]
    table = joined.table.combine_chunks() if joined.table.num_columns else joined.table
    return Manifest(
        table,
        keys,
        joined.base,
        joined.path_columns,
        joined.lists,
        tar,
        tuple(notes),
        split_column,
        str(rule),
        tuple(path for _, path in named if path.is_file()),
        cycles,
    )


def manifest_of_range(num_rows: int) -> Manifest:
    """A manifest of numbers alone, column `index`, for samples that are not files (a dataset's items)."""
    numbers = pa.array(np.arange(num_rows, dtype=np.int64))
    return Manifest(pa.table({"index": numbers}), numbers.cast(pa.large_string()), Path.cwd(), ())


def _named(source: SourceSettings) -> list[tuple[str | None, Path]]:
    """(split, path) of each manifest."""
    if not source.manifest:
        raise ManifestError("no manifest: set `manifest` to a CSV, TSV, Parquet, JSON lines file or a folder")
    if isinstance(source.manifest, str):
        path = Path(source.manifest).expanduser().absolute()
        return [*split_tables(path).items()] or [(None, path)]
    known = {"train", "val", "test", *map(normalise_split, source.splits.ratios)}
    unknown = [name for name in source.manifest if normalise_split(name) not in known]
    if unknown:
        raise ManifestError(f"manifest: unknown split '{unknown[0]}'; known: {', '.join(sorted(known))}")
    return [(normalise_split(s), Path(p).expanduser().absolute()) for s, p in source.manifest.items()]


def _read(path: Path, split: str | None, source: SourceSettings) -> Part:
    fields, base = source.fields, None
    if source.base_path is not None:
        base = Path(source.base_path).expanduser().absolute()
        if not base.is_dir():
            raise ManifestMissingError(f"base_path {base} is not a folder; name the one that paths start from")
    text = {source.key_column, source.splits.group, *_path_columns(fields), *ID_NAMES}
    if source.key_rule is not None:
        rule = KeyRule.parse(source.key_rule)
        text |= {rule.column, *rule.paths}
    texts = {f.column or name for name, f in fields.items() if f.kind == "text"}
    text |= texts if texts and not source.guesses_fields else {*texts, *TEXT_NAMES}
    if source.label_set is not None:
        part = read_label_set(source.label_set, path, base)
    else:
        part = read_part(path, base, {name.lower() for name in text if name}, source.allow_outside_base)
    if fields:
        named = [c for c in _path_columns(fields) if c in part.table.column_names]
        named = [c for c in named if c not in _cycle_columns(fields) or _holds_paths(part.table[c])]
        part = replace(part, path_columns=tuple(dict.fromkeys(_in_order(source, named, part.path_columns))))
    return part.with_split(split, source.splits.column or SPLIT_NAMES[0]) if split else part


def _in_order(source: SourceSettings, named: Sequence[str], found: Sequence[str]) -> Sequence[str]:
    """Path columns: those that fields name, and those found where not only the named ones count.

    Those found come first where fields are guessed: keys made of them are the same with and without settings.
    """
    if source.guesses_fields:
        return [*found, *named]
    # A transform or a kind of another package may read any path.
    reads_any = any(field.kind in ("transform", "custom", "auto") for field in source.fields.values())
    return [*named, *found] if reads_any else named


def _path_columns(fields: Mapping[str, AnyField]) -> list[str]:
    found = []
    for name, field in fields.items():
        if field.kind in PATH_KINDS or (field.kind == "sequence" and (field.column or not field.columns)):
            found.append(field.column or name)
        found += _cycle_columns({name: field})
    return found


def _cycle_columns(fields: Mapping[str, AnyField]) -> list[str]:
    return [f.cycle_column for f in fields.values() if f.kind == "signal" and f.cycle_column]


def _holds_paths(column: pa.ChunkedArray) -> bool:
    """Whether any cell of a column of cycles is a path.

    Start times are values: looked for as files they would never be up to date, and in a key they would change
    it with every correction.
    """
    return any(_is_cycle_path(value) for value in column.to_pylist())


def _holds_times(column: pa.ChunkedArray) -> bool:
    return any(value is not None and not _is_cycle_path(value) for value in column.to_pylist())


def _is_cycle_path(value: Any) -> bool:
    from flatout.source.cycles import is_path

    return is_path(value)


def _audio_column(table: pa.Table, fields: Mapping[str, AnyField]) -> str:
    signals = [field.column or name for name, field in fields.items() if field.kind == "signal"]
    for name in (*signals, *AUDIO_COLUMNS):
        if name in table.column_names:
            return name
    raise ManifestError(f"tarred audio: no column names the members; wanted {', '.join(AUDIO_COLUMNS)}")


def _parts_of_files(
    parts: Sequence[Part], base: Path, source: SourceSettings
) -> tuple[list[slice], Callable[[str], bool]]:
    """The rows of each of several manifests, and what tells whether a file is there: not all may be tarred."""
    ends = np.cumsum([part.num_rows for part in parts]).tolist()
    rows = [slice(end - part.num_rows, end) for part, end in zip(parts, ends, strict=True)]

    def is_file(name: str) -> bool:
        try:
            find_path(name, str(base), source.allow_outside_base)
        except (OSError, SampleError):
            return False
        return True

    return (rows if len(parts) > 1 else []), is_file


def _split_column(
    table: pa.Table, source: SourceSettings, named: Sequence[tuple[str | None, Path]]
) -> str | None:
    """The column that names the splits: as set, that of one manifest a split, or what is found."""
    if source.splits.column is not None:
        return source.splits.column
    if any(split is not None for split, _ in named):
        return SPLIT_NAMES[0]
    return find_split_column(table) if source.splits.guess else None


def _told_split(table: pa.Table, column: str | None) -> list[str]:
    if column is not None:
        return [f"splits: column '{column}'"]
    if (found := find_split_column(table)) is None:
        return []
    return [
        f"column '{found}' is not used: the splits were made without it; set splits.column: {found} to use it"
    ]


def find_split_column(table: pa.Table) -> str | None:
    """A column with the name of a split column and names of splits in it.

    Not only those: with one misspelt, or one of a fourth kind, the others would be divided at random.
    """
    for name in table.column_names:
        if name.lower() in SPLIT_NAMES and any_split(table[name].unique().to_pylist()):
            return str(name)
    return None
