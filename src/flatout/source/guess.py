"""What a first run needs no config for: kinds of fields, split and group, read off names and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from flatout.config.fields import AnyField
from flatout.config.source import SplitSection
from flatout.errors import ConfigError
from flatout.source.arrow import as_text
from flatout.source.channels import equally_long
from flatout.source.columns import common_suffix, first_values, kinds_by_suffix
from flatout.source.judge import LABEL_WORDS, judge_column, mostly_empty, num_distinct, words_of
from flatout.source.key_rule import KeyRule
from flatout.source.manifest import Manifest, find_split_column
from flatout.source.naming import free_name, setting_of, usable_name, without_path_words
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
GROUP_WORDS = {"patient", "subject", "speaker", "participant", "person", "donor", "client", "group"}

FEWEST_GROUPS = 10
"""Fewer groups than this cannot be divided into shares; 4 speakers would all be train."""

MOST_REASONS = 20
"""An error says no more of them: a table may have thousands of columns."""

_FIELD: TypeAdapter[Any] = TypeAdapter(AnyField)


@dataclass
class Guess:
    """Fields and split settings that fit the manifest, and a sentence on each."""

    fields: dict[str, AnyField] = field(default_factory=dict)
    split_column: str | None = None
    group_column: str | None = None
    told: dict[tuple[str, str], str] = field(default_factory=dict)
    """A sentence on each ("field", name), ("column", name) and ("group", column)."""
    columns: Sequence[str] = ()
    """Columns of the manifest: a field that cannot have its column's name takes none of these."""

    @property
    def notes(self) -> list[str]:
        return list(self.told.values())

    def add(self, name: str, why: str, **settings: Any) -> str:
        """Adds a field under a free name and says so; its name."""
        wanted = usable_name(name) or settings["kind"]
        if name and wanted != name:
            why += ", whose name no field can have"
            name = free_name(wanted, wanted, {*self.fields, *self.columns})
        else:
            name = free_name(wanted, wanted.rstrip("0123456789_"), self.fields)
        why = why.replace(f"fields.{settings.get('column')}.", f"fields.{name}.")
        if settings.get("column") == name:
            del settings["column"]
        self.fields[name] = _FIELD.validate_python(settings)
        self.told["field", name] = f"field '{name}': {settings['kind']} from {why}"
        return name

    def pass_over(self, column: str, why: str, setting: str) -> None:
        """Says that a column is not used, and which setting would use it."""
        self.told["column", column] = f"column '{column}' is not used: {why}; set {setting} to use it"

    def check_any(self, manifest: Manifest) -> None:
        """There is a field, or else what is known of each column is the reason.

        Raises:
            ConfigError: there is none, so that a sample would be empty.
        """
        if self.fields:
            return
        notes = [*self.notes, *manifest.notes]
        if len(notes) > MOST_REASONS:
            notes[MOST_REASONS:] = [f"and {len(notes) - MOST_REASONS:,} more"]
        reasons = "".join(f"\n  {note}" for note in notes)
        raise ConfigError(
            f"no column of {manifest.place} gives a field, and a sample would be empty; name one yourself, as "
            f"in --set fields.COLUMN.kind=text, or set a transform:{reasons}"
        )


def guess_fields(manifest: Manifest, splits: SplitSection = SplitSection()) -> Guess:  # noqa: B008  frozen
    """Fields for a manifest's columns: paths by suffix, lists as sequences, the rest by name and type.

    Every column is a field, the key, the split, the group, or has a note on why it is none of them.
    """
    guess = Guess(split_column=manifest.split_column, columns=manifest.columns)
    _add_paths(guess, manifest)
    _add_lists(guess, manifest)
    groups = group_columns(manifest)
    # Names of splits make no classes, even where they may not divide.
    split_column = guess.split_column or find_split_column(manifest.table)
    told = {*manifest.path_columns, split_column, *groups, *_segment_columns(guess), *manifest.cycle_columns}
    for name in manifest.table.column_names:
        if name not in told:
            _add_column(guess, manifest, name)
    choose_group(guess, manifest, groups, splits)
    for name in manifest.cycle_columns:
        guess.told["column", name] = f"column '{name}' says where cycles start"
    for name in manifest.table.column_names:
        if not any(f"'{name}'" in note for note in (*manifest.notes, *guess.notes)):
            guess.pass_over(name, "nothing here uses it", setting_of(name))
    return guess


def _add_paths(guess: Guess, manifest: Manifest) -> None:
    if manifest.tar is not None:
        _add_signal(guess, manifest, manifest.tar.column, "tar members")
    kinds = {}
    for column in manifest.path_columns:
        if manifest.tar is not None and column == manifest.tar.column:
            continue
        suffix = common_suffix(first_values(manifest.table, column))
        kind = kinds_by_suffix().get(suffix)
        if why_not := mostly_empty(manifest.table[column]):
            guess.pass_over(column, why_not, setting_of(column, kind or "custom"))
        else:
            kinds[column] = (kind, suffix)
    masks = [c for c, (kind, _) in kinds.items() if kind in ("image", "volume") and words_of(c) & MASK_WORDS]
    if len(masks) == sum(kind in ("image", "volume") for kind, _ in kinds.values()):
        masks = []  # nothing left for them to be the mask of
    images = []
    for column, (kind, suffix) in kinds.items():
        why = f"column '{column}' ({'DICOM folders' if suffix == '/' else suffix})"
        if kind is None:
            why = f"it holds paths, but nothing decodes '{suffix}'"
            guess.pass_over(column, why, f"a transform or {setting_of(column, 'custom')}")
        elif kind == "signal":
            _add_signal(guess, manifest, column, why)
        elif column not in masks:
            name = guess.add(without_path_words(column), why, kind=kind, column=column)
            images += [name] if kind in ("image", "volume") else []
    for column in masks:
        guess.add(
            without_path_words(column),
            f"column '{column}', of '{images[0]}'",
            kind="mask",
            of=images[0],
            column=column,
        )


def _add_signal(guess: Guess, manifest: Manifest, column: str, why: str) -> None:
    """A signal; where the manifest has NeMo's offset it is a segment of its file."""
    settings: dict[str, str] = {}
    names = manifest.table.column_names
    if "offset" in names and _any_later_start(manifest.table["offset"]):
        settings["offset_column"] = "offset"
        if "duration" in names:
            settings["duration_column"] = "duration"
        why += f", in segments by {' and '.join(repr(name) for name in settings.values())}"
    guess.add(without_path_words(column), why, kind="signal", column=column, **settings)


def _any_later_start(offsets: pa.ChunkedArray) -> bool:
    is_number = pa.types.is_integer(offsets.type) or pa.types.is_floating(offsets.type)
    return is_number and bool(pc.any(pc.not_equal(offsets, 0)).as_py())


def _segment_columns(guess: Guess) -> set[str]:
    signals = [section for section in guess.fields.values() if section.kind == "signal"]
    return {name for s in signals for name in (s.offset_column, s.duration_column) if name is not None}


def _add_lists(guess: Guess, manifest: Manifest) -> None:
    """List columns whose first lists have equal lengths are the channels of one sequence."""
    if manifest.lists is None:
        return
    usual: dict[str, list[int | None]] = {}
    first_lengths = manifest.lists.first_lengths()
    are_rare = int((manifest.lists.file_of < 0).sum()) * 2 > len(manifest)
    for name in manifest.lists.names:
        lengths = first_lengths.get(name, [None])
        if are_rare or lengths.count(None) * 2 > len(lengths):
            guess.pass_over(name, "most of its first lists are missing", setting_of(name, "sequence"))
        else:
            usual[name] = lengths
    for names in equally_long(usual):
        name = names[0] if len(names) == 1 else "sequence"
        guess.add(name, f"list columns {', '.join(names)}", kind="sequence", columns=names)


def _add_column(guess: Guess, manifest: Manifest, name: str) -> None:
    """A field for one column of plain values if it looks like one, else a note; none for the key's."""
    kind, why_not, remark = judge_column(name, manifest.table[name])
    if not why_not:
        why = f"column '{name}'" + (f" ({remark})" if remark else "")
        guess.add(name, why, kind=kind, column=name)
    elif not _is_key(manifest, name):
        guess.pass_over(name, why_not, setting_of(name, kind))


def _is_key(manifest: Manifest, name: str) -> bool:
    """Whether the keys, on which the manifest has a note, are this column."""
    column, keys = manifest.table[name], manifest.keys
    if not as_text(column.slice(0, 1)).equals(keys.slice(0, 1)):
        return False  # without turning a whole column into text
    return bool(as_text(column).equals(keys))


def group_columns(manifest: Manifest) -> list[str]:
    """Columns named as patients and their like; `patient_outcome` is a label for all that."""
    taken = {*manifest.path_columns, manifest.split_column}
    words = {name: words_of(name) for name in manifest.table.column_names if name not in taken}
    return [name for name, found in words.items() if found & GROUP_WORDS and not found & LABEL_WORDS]


def choose_group(guess: Guess, manifest: Manifest, names: Sequence[str], splits: SplitSection) -> None:
    """The first of these columns that can be divided by, with a word on why the others are not; else files."""
    table = manifest.table
    for name in names:
        num_groups = num_distinct(table[name])
        if name == splits.group:
            _keep_together(guess, name, num_groups)
        elif (chosen := splits.group or guess.group_column) is not None:
            why = f"splits keep each '{chosen}' together already"
            guess.pass_over(name, why, f"splits.group: {name}")
        elif pa.types.is_floating(table[name].type):
            guess.pass_over(name, "it has the name of a group, but fractions", f"splits.group: {name}")
        elif num_groups < FEWEST_GROUPS:
            guess.told["group", name] = (
                f"'{name}' has {num_groups} values, too few to divide by; set splits.group to insist"
            )
        elif guess.split_column and _leaks(table, guess.split_column, name):
            guess.told["group", name] = (
                f"WARNING: values of '{name}' stand in more than one split: samples may leak"
            )
        elif not splits.guess:
            guess.pass_over(name, "the splits were made without it", f"splits.group: {name}")
        else:
            _keep_together(guess, name, num_groups)
    if splits.group is None and guess.group_column is None:
        _keep_files_together(guess, manifest, splits)


def _keep_files_together(guess: Guess, manifest: Manifest, splits: SplitSection) -> None:
    """Rows of one file (pieces of a recording, one row twice) are alike: no two splits may have some."""
    if (name := _shared_files(guess, manifest)) is None:
        return None
    num_files = num_distinct(manifest.table[name])
    told = f"several rows have the same '{name}'"
    way_out = f"set splits.group: {name} to keep them together"
    if guess.split_column is not None:
        if not _leaks(manifest.table, guess.split_column, name):
            return None
        told = f"WARNING: rows of one '{name}' stand in more than one split: samples may leak"
    elif num_files < FEWEST_GROUPS:
        told += f", but {num_files} are too few to divide by; set splits.group: {name} to insist"
    elif splits.stratify is not None:
        told += f", and splits.stratify divides them: samples may leak; {way_out}"
    elif not splits.guess:
        told += f", but the splits were made without it: samples may leak; {way_out}"
    else:
        return _keep_together(guess, name, num_files)
    guess.told["group", name] = told
    return None


def _shared_files(guess: Guess, manifest: Manifest) -> str | None:
    """The column of paths whose files several rows have; None where a row has a file of its own.

    One column with another file in each row is enough: noise that is mixed in again and again is no recording
    whose pieces the rows are. Masks do not count: two of one image are two rows of it.
    """
    masks = {section.column or name for name, section in guess.fields.items() if section.kind == "mask"}
    names = [name for name in manifest.path_columns if name not in masks]
    if not names or manifest.key_rule in {str(KeyRule(paths=(name,))) for name in names}:
        return None  # the keys have told already: to count takes 44 ms for 300,000
    counts = {name: num_distinct(manifest.table[name]) for name in names}
    if any(count == len(manifest) - manifest.table[name].null_count for name, count in counts.items()):
        return None
    return max(names, key=lambda name: counts[name])


def _keep_together(guess: Guess, name: str, num_groups: int) -> None:
    guess.group_column = name
    guess.told["group", name] = f"splits keep each '{name}' together ({num_groups:,} groups)"


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
