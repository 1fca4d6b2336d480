"""Which split and which group each manifest row belongs to, by the columns that the settings name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flatout.config.fields import UNSETTLED
from flatout.config.source import SplitSection
from flatout.errors import ConfigError, ManifestError
from flatout.source import (
    Manifest,
    assign_splits,
    key_hashes,
    normalise_split,
    places_below,
    plain_text,
    rows_without_split,
    text_hashes,
)
from flatout.store.index import MAX_SPLITS
from flatout.types import Array

TRAIN = "train"
USUAL = (TRAIN, "val", "test")


@dataclass(frozen=True)
class Division:
    """The split and the group of every row."""

    splits: Any
    """Split name of each row."""
    groups: Array
    """64-bit group of each row; its own key's hash where it has none."""
    settings: SplitSection
    """What it was divided by; `always_train` names what had to be moved there, so that it stays there."""
    notes: tuple[str, ...] = ()


def divide(manifest: Manifest, hashes: Array, settings: SplitSection) -> Division:
    """Divide the rows by the manifest's own split, else by ratios, of which train is filled first.

    Raises:
        ManifestError: as `assign_splits`. ConfigError: the ratios are all 0, or there are too many splits.
    """
    name = settings.column or manifest.split_column
    column = _column(manifest, name)
    groups = _column(manifest, settings.group)
    if groups is not None and settings.group in manifest.path_columns:
        groups = places_below(groups, manifest.base_path)
    classes = _column(manifest, settings.stratify)
    try:
        splits = assign_splits(
            manifest.keys, settings, hashes=hashes, column=column, groups=groups, classes=classes
        )
    except ManifestError as error:
        if column is None:
            raise
        raise ManifestError(f"column '{name}' of {manifest.place}: {error}") from error
    notes = (*_told_unnamed(manifest, name), *_told_unstratified(settings, name))
    found = Division(splits, hashes if groups is None else text_hashes(groups, hashes), settings, notes)
    if column is None:
        return _numbered(_with_train(found, manifest.keys, groups), "splits.ratios")
    return _numbered(found, f"column '{name}' of {manifest.place}")


def _numbered(found: Division, by: str) -> Division:
    """The division, if the index can number its splits: the commit would fail, with every sample made."""
    if len(found.settings.ratios) + len(USUAL) <= MAX_SPLITS:  # nothing else can be named: no row is looked at
        return found
    if (num_splits := len(np.unique(found.splits))) > MAX_SPLITS:
        raise ConfigError(
            f"{by}: {num_splits:,} splits, where a store can have {MAX_SPLITS}. Name fewer in splits.ratios: "
            "join some, or leave them out of splits.column and keep the names as a field"
        )
    return found


def _told_unnamed(manifest: Manifest, name: str | None) -> list[str]:
    """That rows without a split of their own were divided, and how."""
    if name is None or not len(empty := rows_without_split(manifest.table[name])):
        return []
    first = manifest.keys[int(empty[0])].as_py()
    return [
        f"{len(empty):,} rows name no split in '{name}' (the first is '{first}'): they are divided as the "
        "rest of their group, else by ratios"
    ]


def _told_unstratified(settings: SplitSection, name: str | None) -> list[str]:
    """That classes do not count: neither a column nor whole groups can be divided by them."""
    divided_by = name or settings.group
    if settings.stratify is None or divided_by is None:
        return []
    return [f"splits.stratify: '{settings.stratify}' has no effect: rows are divided by '{divided_by}'"]


def divide_items(manifest: Manifest, hashes: Array, settings: SplitSection) -> Division:
    """Divide the items of a dataset, which have no columns, by ratios."""
    splits = assign_splits(manifest.keys, settings, hashes=hashes)
    return _numbered(_with_train(Division(splits, hashes, settings), manifest.keys, None), "splits.ratios")


def keep_in_train(settings: SplitSection, recorded: Mapping[str, Any]) -> SplitSection:
    """The settings with what a store's recorded ones have in train: it stays there when data is added."""
    before = (recorded.get("splits") or {}).get("always_train") or ()
    names = list(dict.fromkeys([*before, *settings.always_train]))
    return settings.model_copy(update={"always_train": names})


def recorded_splits(splits: SplitSection, settings: Mapping[str, Any]) -> SplitSection:
    """The settings with the columns that a store was divided by, where they name none themselves.

    That it was divided without one counts as well: a tenth patient must not move every sample. A row that
    names no split in a column of the store is divided by itself, which moves no other.
    """
    recorded = settings.get("splits")
    if not recorded or splits.column not in (None, recorded.get("column")):
        return splits  # another column is another division: a group that was found may not fit it
    update: dict[str, Any] = {"group": splits.group or recorded.get("group")}
    if splits.column is None and recorded.get("column") is not None:
        update |= {"column": recorded["column"], "empty": "divide"}
    if "guess" in recorded or _guessed_fields(settings):
        update["guess"] = False
    return splits.model_copy(update=update)


def _guessed_fields(settings: Mapping[str, Any]) -> bool:
    """Whether a store's fields were guessed: only then did older stores keep a split column they found."""
    if settings.get("transform") is not None or settings.get("guess_fields") is not None:
        return bool(settings.get("guess_fields")) and settings.get("transform") is None
    kinds = [(section or {}).get("kind", "auto") for section in (settings.get("fields") or {}).values()]
    return not kinds or any(kind in UNSETTLED for kind in kinds)


def _with_train(found: Division, keys: Any, groups: Any) -> Division:
    """The division with those in train that always are, and with one of the others if train would be empty.

    A function of the hashes alone leaves a set of one sample without train in one case of five.
    """
    splits, always = found.splits, found.settings.always_train
    if not len(splits) or not _has_share(found.settings):
        return found
    if always:
        splits = np.where(np.isin(found.groups, key_hashes(always)), TRAIN, splits)
    if (splits == TRAIN).any():
        return replace(found, splits=splits)
    first = int(np.argmin(found.groups))
    group = None if groups is None else groups[first].as_py()
    name = str(keys[first]) if group in (None, "") else plain_text(group)
    before = str(splits[first])
    return replace(
        found,
        splits=np.where(found.groups == found.groups[first], TRAIN, splits),
        settings=found.settings.model_copy(update={"always_train": [*always, name]}),
        notes=(
            *found.notes,
            f"'{name}' is {TRAIN} instead of {before}, or {TRAIN} would be empty; it stays there",
        ),
    )


def _has_share(settings: SplitSection) -> bool:
    return any(normalise_split(name) == TRAIN and ratio > 0 for name, ratio in settings.ratios.items())


def _column(manifest: Manifest, name: str | None) -> Any:
    return None if name is None else manifest.table[name]
