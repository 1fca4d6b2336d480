"""What a first run needs no config for: kinds of fields, split and group, read off names and values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from flatout.config.fields import AnyField
from flatout.source.columns import common_suffix, first_values, kinds_by_suffix
from flatout.source.keys import ID_NAMES
from flatout.source.manifest import TEXT_NAMES, Manifest
from flatout.source.splits import normalise_split

MASK_WORDS = {
    "mask",
    "masks",
    "label",
    "labels",
    "seg",
    "segmentation",
    "annotation",
    "contour",
    "groundtruth",
    "gt",
}
LABEL_WORDS = {"label", "labels", "class", "classes", "target", "diagnosis", "category", "outcome", "y"}
TEXT_WORDS = set(TEXT_NAMES)
GROUP_WORDS = {"patient", "subject", "speaker", "participant", "person", "donor", "client", "group"}
MEASURE_WORDS = {
    "duration", "offset", "rate", "sr", "length", "len", "frames", "size", "width", "height", "bytes",
    "shard", "index", "idx", "row", "num", "start", "end", "md5", "sha256", "hash", "checksum", "column",
}  # fmt: skip
"""Columns that describe the files rather than the sample."""
_PATH_WORDS = {
    "path",
    "paths",
    "file",
    "files",
    "filepath",
    "filename",
    "fname",
    "name",
    "rel",
    "relative",
    "abs",
}

MOST_CLASSES = 1000
FEW_CLASSES = 32
FEWEST_GROUPS = 10
"""Fewer groups than this cannot be divided into shares; 4 speakers would all be train."""

_FIELD: TypeAdapter[Any] = TypeAdapter(AnyField)


@dataclass
class Guess:
    """Fields and split settings that fit the manifest, and a sentence on each."""

    fields: dict[str, AnyField] = field(default_factory=dict)
    split_column: str | None = None
    group_column: str | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, why: str, **settings: Any) -> str:
        """Adds a field under a free name and says so; its name."""
        name, taken = name or settings["kind"], 2
        while name in self.fields:
            name, taken = f"{name.rstrip('0123456789_')}_{taken}", taken + 1
        if settings.get("column") == name:
            del settings["column"]
        self.fields[name] = _FIELD.validate_python(settings)
        self.notes.append(f"field '{name}': {settings['kind']} from {why}")
        return name


def guess_fields(manifest: Manifest) -> Guess:
    """Fields for a manifest's columns: paths by suffix, lists as sequences, the rest by name and type."""
    guess = Guess(split_column=manifest.split_column)
    _add_paths(guess, manifest)
    _add_lists(guess, manifest)
    paths = set(manifest.path_columns)
    for name in manifest.table.column_names:
        if name not in paths and name != guess.split_column:
            _add_column(guess, manifest.table, name)
    if guess.group_column is None and (groups := _group_columns(manifest, paths)):
        _choose_group(guess, manifest.table, groups)
    return guess


def _add_paths(guess: Guess, manifest: Manifest) -> None:
    if manifest.tar is not None:
        _add_signal(guess, manifest, manifest.tar.column, "tar members")
    kinds = {}
    for column in manifest.path_columns:
        if manifest.tar is not None and column == manifest.tar.column:
            continue
        suffix = common_suffix(first_values(manifest.table, column))
        kinds[column] = (kinds_by_suffix().get(suffix), suffix)
    masks = [c for c, (kind, _) in kinds.items() if kind in ("image", "volume") and _words(c) & MASK_WORDS]
    if len(masks) == sum(kind in ("image", "volume") for kind, _ in kinds.values()):
        masks = []  # nothing left for them to be the mask of
    images = []
    for column, (kind, suffix) in kinds.items():
        why = f"column '{column}' ({'DICOM folders' if suffix == '/' else suffix})"
        if kind is None:
            guess.notes.append(f"column '{column}' holds paths, but nothing decodes '{suffix}'")
        elif kind == "signal":
            _add_signal(guess, manifest, column, why)
        elif column not in masks:
            name = guess.add(_field_name(column), why, kind=kind, column=column)
            images += [name] if kind in ("image", "volume") else []
    for column in masks:
        guess.add(
            _field_name(column),
            f"column '{column}', of '{images[0]}'",
            kind="mask",
            of=images[0],
            column=column,
        )


def _add_signal(guess: Guess, manifest: Manifest, column: str, why: str) -> None:
    """A signal; where the manifest has NeMo's offset it is a segment of its file."""
    settings: dict[str, str] = {}
    table = manifest.table
    if "offset" in table.column_names and pc.any(pc.not_equal(table["offset"], 0)).as_py():
        settings["offset_column"] = "offset"
        if "duration" in table.column_names:
            settings["duration_column"] = "duration"
    guess.add(_field_name(column), why, kind="signal", column=column, **settings)


def _add_lists(guess: Guess, manifest: Manifest) -> None:
    """List columns whose first lists have equal lengths are the channels of one sequence."""
    if manifest.lists is None:
        return
    together: dict[tuple[int | None, ...], list[str]] = {}
    for name, lengths in manifest.lists.first_lengths().items():
        together.setdefault(tuple(lengths), []).append(name)
    for names in together.values():
        field_name = names[0] if len(names) == 1 else "sequence"
        guess.add(field_name, f"list columns {', '.join(names)}", kind="sequence", columns=names)


def _add_column(guess: Guess, table: pa.Table, name: str) -> None:
    """A field for one scalar column, if it looks like one."""
    words, column = _words(name), table[name]
    if name.lower() in ID_NAMES or words & (GROUP_WORDS | MEASURE_WORDS) or column.null_count == len(column):
        return
    why = f"column '{name}'"
    if pa.types.is_large_string(column.type):
        if words & TEXT_WORDS:
            guess.add(name, why, kind="text", column=name)
        elif words & LABEL_WORDS and 1 < _num_distinct(column) <= min(MOST_CLASSES, len(column) // 2):
            guess.add(name, why, kind="label", column=name)
        else:
            guess.notes.append(f"column '{name}' is not used")
    elif pa.types.is_boolean(column.type):
        guess.add(name, why, kind="label", column=name)
    elif pa.types.is_integer(column.type):
        kind = "label" if _are_classes(column, words) else "scalar"
        guess.add(name, why, kind=kind, column=name)
    elif pa.types.is_floating(column.type):
        guess.add(name, why, kind="scalar", column=name)


def _are_classes(column: pa.ChunkedArray, words: set[str]) -> bool:
    """Integers that number classes: few distinct ones, none negative."""
    most = MOST_CLASSES if words & LABEL_WORDS else FEW_CLASSES
    lowest = pc.min(column).as_py()
    return lowest >= 0 and _num_distinct(column) <= min(most, max(len(column) // 2, 2))


def _group_columns(manifest: Manifest, paths: set[str]) -> list[str]:
    names = (n for n in manifest.table.column_names if n not in paths and _words(n) & GROUP_WORDS)
    return [name for name in names if not pa.types.is_floating(manifest.table[name].type)]


def _choose_group(guess: Guess, table: pa.Table, names: Sequence[str]) -> None:
    """The first of these columns that can be divided by, with a word on why the others cannot."""
    for name in names:
        num_groups = _num_distinct(table[name])
        if num_groups < FEWEST_GROUPS:
            guess.notes.append(
                f"'{name}' has {num_groups} values, too few to divide by; set splits.group to insist"
            )
        elif guess.split_column and _leaks(table, guess.split_column, name):
            guess.notes.append(f"WARNING: values of '{name}' stand in more than one split: samples may leak")
        else:
            guess.group_column = name
            guess.notes.append(f"splits keep each '{name}' together ({num_groups:,} groups)")
            return


def _leaks(table: pa.Table, split_column: str, group_column: str) -> bool:
    pairs = (
        table.select([split_column, group_column])
        .drop_null()
        .group_by([split_column, group_column])
        .aggregate([])
    )
    found = set(
        zip(
            map(normalise_split, pairs[split_column].to_pylist()),
            pairs[group_column].to_pylist(),
            strict=True,
        )
    )
    return len({group for _, group in found}) < len(found)


def _num_distinct(column: pa.ChunkedArray) -> int:
    return int(pc.count_distinct(column).as_py())


def _words(name: str) -> set[str]:
    """`PatientID` -> patient, id; `near_duplicate_group` -> near, duplicate, group."""
    return set(re.findall(r"[a-z]+\d*|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def _field_name(column: str) -> str:
    """A column's name without the words for path; empty where nothing else is left."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column).lower()
    words = [word for word in re.split(r"[^a-z0-9]+", spaced) if word and word not in _PATH_WORDS]
    return "_".join(words)
