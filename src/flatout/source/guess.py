"""What a first run needs no config for: kinds of fields, split and group, read off names and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from flatout.config.fields import AnyField
from flatout.config.source import SplitSection
from flatout.errors import ConfigError
from flatout.source.arrow import as_text
from flatout.source.channels import equally_long
from flatout.source.columns import common_suffix, first_values, kinds_by_suffix
from flatout.source.groups import choose_group, group_columns
from flatout.source.judge import judge_column, mostly_empty, words_of
from flatout.source.key_rule import OFFSET
from flatout.source.manifest import Manifest, find_split_column
from flatout.source.naming import free_name, setting_of, usable_name, without_path_words
from flatout.source.seconds import any_later_start, any_seconds

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
    """A sentence on each ("field", name), ("column", name), ("group", column) and ("digits", name)."""
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
    told |= {name for what, name in guess.told if what == "column"}
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
    settings = _segment_settings(guess, manifest)
    if settings:
        why += f", in segments by {' and '.join(repr(name) for name in settings.values())}"
    guess.add(without_path_words(column), why, kind="signal", column=column, **settings)


def _segment_settings(guess: Guess, manifest: Manifest) -> dict[str, str]:
    """The columns of NeMo's segments, where there are some. A cell that is no number makes its own row bad."""
    names = manifest.table.column_names
    if OFFSET not in names:
        return {}
    starts = manifest.table[OFFSET]
    if any_later_start(starts):
        return {"offset_column": OFFSET} | ({"duration_column": "duration"} if "duration" in names else {})
    if not any_seconds(starts) and not mostly_empty(starts):
        why_not = "no cell of it is a number of seconds, so the recordings are taken whole"
        guess.pass_over(OFFSET, why_not, setting_of(OFFSET, "text"))
    return {}


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
