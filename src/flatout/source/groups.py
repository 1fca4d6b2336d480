"""Groups: rows that are alike, of one patient or of one file, and must not stand in two splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from flatout.config.source import SplitSection
from flatout.source.judge import LABEL_WORDS, num_distinct, words_of
from flatout.source.key_rule import KeyRule
from flatout.source.manifest import Manifest
from flatout.source.splits import normalise_split

if TYPE_CHECKING:
    from flatout.source.guess import Guess

GROUP_WORDS = {"patient", "subject", "speaker", "participant", "person", "donor", "client", "group"}

FEWEST_GROUPS = 10
"""Fewer groups than this cannot be divided into shares; 4 speakers would all be train."""


def group_columns(manifest: Manifest) -> list[str]:
    """Columns named as patients and their like; `patient_outcome` is a label for all that."""
    taken = {*manifest.path_columns, manifest.split_column}
    words = {name: words_of(name) for name in manifest.table.column_names if name not in taken}
    return [name for name, found in words.items() if found & GROUP_WORDS and not found & LABEL_WORDS]


def choose_group(guess: Guess, manifest: Manifest, names: Sequence[str], splits: SplitSection) -> None:
    """The first of these columns that can be divided by, with a word on why the others are not."""
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


def keep_files_together(guess: Guess, manifest: Manifest, splits: SplitSection) -> None:
    """Rows of one file (pieces of a recording, one row twice) are alike: no two splits may have some.

    Where nothing else keeps rows together. Fields are settled by now: which of the files are masks is known.
    """
    if splits.group is not None or guess.group_column is not None or not (names := _shared(guess, manifest)):
        return None
    name, table = names[0], manifest.table
    told = f"several rows have the same '{name}'"
    way_out = f"set splits.group: {name} to keep them together"
    if guess.split_column is not None:
        leaking = [each for each in names if _leaks(table, guess.split_column, each)]
        if not leaking:
            return None
        told = f"WARNING: rows of one '{leaking[0]}' stand in more than one split: samples may leak"
    elif len(names) > 1:
        listed = ", some one of ".join(f"'{each}'" for each in names)
        told = f"WARNING: some rows share a file of {listed}: samples may leak; set splits.group to one"
    elif (num_files := num_distinct(table[name])) < FEWEST_GROUPS:
        told += f", but {num_files} are too few to divide by; set splits.group: {name} to insist"
    elif splits.stratify is not None:
        told += f", and splits.stratify divides them: samples may leak; {way_out}"
    elif not splits.guess:
        told += f", but the splits were made without it: samples may leak; {way_out}"
    else:
        return _keep_together(guess, name, num_files)
    guess.told["group", name] = told
    return None


def _shared(guess: Guess, manifest: Manifest) -> list[str]:
    """The columns of paths whose files several rows have; none where a row has a file of its own.

    One column with another file in each row is enough: noise that is mixed in again and again is no recording
    whose pieces the rows are. Masks do not count: two of one image are two rows of it. Of columns that always
    repeat together, such as two views of a scan, one stands for all.
    """
    masks = {section.column or name for name, section in guess.fields.items() if section.kind == "mask"}
    names = [name for name in manifest.path_columns if name not in masks]
    if not names or manifest.key_rule in {str(KeyRule(paths=(name,))) for name in names}:
        return []  # the keys have told already: to count takes 44 ms for 300,000
    counts = {name: num_distinct(manifest.table[name]) for name in names}
    if any(count == len(manifest) - manifest.table[name].null_count for name, count in counts.items()):
        return []
    if len(names) == 1:
        return names
    num_together = manifest.table.select(names).group_by(names).aggregate([]).num_rows
    return names[:1] if set(counts.values()) == {num_together} else names


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
