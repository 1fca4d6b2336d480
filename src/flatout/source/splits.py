"""Which split a sample belongs to: a function of its key (or group) and the settings alone.

Hash thresholds: with ratios 0.8 / 0.1 / 0.1 a key whose hash lies in the lowest 80 % of all 64-bit numbers is
`train`. Shares are therefore approximate, and no sample ever moves because others came or went.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flatout.config.source import SplitSection
from flatout.errors import ConfigError, ManifestError
from flatout.source.arrow import MISSING_WORDS, one_piece
from flatout.source.keys import key_hashes
from flatout.source.paths import is_inside

Column = Any
"""An Arrow array, or a sequence of values."""

SPELLINGS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "validate": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Other spellings of the three usual splits."""

_MISSING = frozenset(MISSING_WORDS.to_pylist())


def normalise_split(name: str) -> str:
    """`Training` -> `train`, `valid` and `dev` -> `val`; other names in lower case."""
    plain = name.strip().lower()
    return SPELLINGS.get(plain, plain)


def is_split_name(name: str) -> bool:
    """Whether this is one of the usual spellings of train, val or test."""
    return name.strip().lower() in SPELLINGS


def assign_splits(
    keys: pa.Array | Sequence[str],
    settings: SplitSection,
    *,
    column: Column | None = None,
    groups: Column | None = None,
    classes: Column | None = None,
    hashes: NDArray[np.uint64] | None = None,
) -> NDArray[np.str_]:
    """The split name of every key, in order.

    `column`: the manifest's own split names, which win over ratios; a row that has none is refused, or
    divided (`settings.empty`) as its group is, else by ratios. `groups`: rows of one group share a
    split; a missing group stands for itself. `classes`: every class is divided on its own (without groups;
    a group may hold several classes). `hashes`: `key_hashes(keys)` where the caller has them already.

    Raises:
        ManifestError: an unknown or missing split name, or a group that the column puts into two splits.
        ConfigError: the ratios are all 0.
    """
    if column is not None:
        splits = _from_column(column, settings)
        if (unnamed := splits == "").any():
            rest = assign_splits(keys, settings, groups=groups, classes=classes, hashes=hashes)
            splits = np.where(unnamed, _as_their_group(splits, groups, rest), splits)
        if groups is not None:
            _refuse_leak(splits, groups)
        return splits
    own = key_hashes(keys) if hashes is None else hashes
    if groups is not None:
        own = text_hashes(groups, own)
    elif classes is not None:
        # The class joins the hash, so that the divisions of two classes are independent draws.
        own = _mixed(own ^ _mixed(text_hashes(classes, np.zeros_like(own))))
    return _by_threshold(_mixed(own ^ _seed_hash(settings.seed)), settings.ratios)


def rows_without_split(column: Column) -> NDArray[np.int64]:
    """Positions of the rows whose split column is empty."""
    return np.flatnonzero(_named(column)[0] < 0)


def _from_column(column: Column, settings: SplitSection) -> NDArray[np.str_]:
    """The split that each row names; "" where it names none and is to be divided."""
    codes, splits = _named(column)
    if (codes < 0).any() and settings.empty == "refuse":
        row = int(np.argmax(codes < 0)) + 1
        raise ManifestError(
            f"{(codes < 0).sum():,} rows name no split (the first is row {row}); name one, or set "
            "splits.empty: divide to have them divided by ratios"
        )
    known = {"train", "val", "test", *map(normalise_split, settings.ratios)}
    unknown = [name for name, split in splits.items() if split and split not in known]
    if unknown:
        told = ", ".join(repr(name) for name in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        raise ManifestError(
            f"unknown split names {told}; known: {', '.join(sorted(known))}. Mend them, or add others to "
            "splits.ratios; with splits.guess: false a column is no split unless splits.column names it"
        )
    return np.array([*splits.values(), ""], dtype=np.str_)[codes]  # an empty cell's -1 is the last


def _named(column: Column) -> tuple[NDArray[np.int64], dict[str, str]]:
    """A code for each row (-1: it names no split), and the names that they stand for with their splits."""
    codes, names = _encoded(column)
    splits = {name: "" if name.strip() in _MISSING else normalise_split(name) for name in names}
    codes[np.isin(codes, [at for at, split in enumerate(splits.values()) if not split])] = -1
    return codes, splits


def _as_their_group(
    splits: NDArray[np.str_], groups: Column | None, otherwise: NDArray[np.str_]
) -> NDArray[np.str_]:
    """The split that other rows of each row's group name: else its group would stand in two."""
    if groups is None:
        return otherwise
    codes, names = _encoded(groups)
    of_group = np.full(len(names) + 1, "", splits.dtype)
    is_known = (splits != "") & (codes >= 0)
    of_group[codes[is_known]] = splits[is_known]
    return np.where(of_group[codes] != "", of_group[codes], otherwise)


def _refuse_leak(splits: NDArray[np.str_], groups: Column) -> None:
    codes, names = _encoded(groups)
    split_names, split_codes = np.unique(splits, return_inverse=True)
    grouped = codes >= 0
    pairs = np.unique(codes[grouped] * len(split_names) + split_codes[grouped])
    group_of = pairs // max(len(split_names), 1)
    twice = group_of[1:][np.diff(group_of) == 0]
    if len(twice):
        within = pairs[group_of == twice[0]] % len(split_names)
        told = " and ".join(split_names[within])
        num_leaks = len(np.unique(twice))
        raise ManifestError(
            f"group '{names[int(twice[0])]}' stands in {told} ({num_leaks:,} such groups): its samples would "
            "leak between splits. Correct the split column, or leave out splits.group (if an earlier prepare "
            "chose it, --force divides anew)"
        )


def _by_threshold(hashes: NDArray[np.uint64], ratios: Mapping[str, float]) -> NDArray[np.str_]:
    shares: dict[str, Fraction] = {}
    for name, ratio in ratios.items():
        if ratio > 0:
            split = normalise_split(name)
            shares[split] = shares.get(split, Fraction(0)) + Fraction(str(ratio))
    if not shares:
        raise ConfigError(f"splits.ratios are all 0: {dict(ratios)}")
    names = sorted(shares, key=split_order)
    total, reached, bounds = sum(shares.values()), Fraction(0), []
    for name in names[:-1]:
        reached += shares[name]
        bounds.append(int(reached / total * 2**64))
    codes = np.searchsorted(np.array(bounds, np.uint64), hashes, side="right")
    return np.array(names, dtype=np.str_)[codes]


def split_order(name: str) -> tuple[int, str]:
    """Train, val, test, then others by name: the order of the ratios in a file must not matter."""
    usual = ["train", "val", "test"]
    return (usual.index(name) if name in usual else len(usual), name)


def _encoded(column: Column) -> tuple[NDArray[np.int64], list[str]]:
    """A code for each value (-1: missing or empty) and the texts the codes stand for."""
    array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column)
    array = one_piece(array)
    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    names = [plain_text(value) for value in encoded.dictionary.to_pylist()]
    if "" in names:
        codes[codes == names.index("")] = -1
    return codes, names


def plain_text(value: object) -> str:
    """Its text; 3.0 is 3, as pandas writes whole numbers beside missing ones."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def places_below(column: Column, base: Path) -> pa.DictionaryArray:
    """Paths with one spelling each, relative where they lead below `base`: data that moves keeps its splits."""
    encoded = one_piece(column).dictionary_encode()
    start = os.path.normpath(base)
    places = [_place_below(text, start) for text in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(places, pa.large_string()))


def _place_below(text: str, base: str) -> str:
    """1 us a path; by way of `relpath` 26."""
    if not text:
        return ""
    place = os.path.normpath(text)
    if os.path.isabs(place) or place.startswith(os.pardir):  # noqa: PTH117  a Path costs 3 us
        full = os.path.normpath(os.path.join(base, text))
        place = full[len(base) :].lstrip(os.sep) if is_inside(full, base) else full
    return place.replace(os.sep, "/")


def text_hashes(column: Column, missing: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash of each value's text, computed once a distinct value; `missing` where there is none."""
    codes, names = _encoded(column)
    if not names:
        return missing
    return np.where(codes >= 0, key_hashes(names)[codes], missing)


def _seed_hash(seed: int) -> np.uint64:
    return np.uint64(key_hashes([f"split {seed}"])[0])


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: each input bit reaches every output bit, exactly on any machine."""
    mixed = hashes.copy()
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def any_split(names: Iterable[object]) -> bool:
    """Whether one of these values is a usual spelling of train, val or test."""
    return any(isinstance(name, str) and is_split_name(name) for name in names)
