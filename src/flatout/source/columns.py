"""Which columns hold paths, and which kind of field a file's suffix speaks for."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pyarrow as pa

from flatout.errors import SampleError
from flatout.source.keys import ID_NAMES
from flatout.source.paths import resolve_path
from flatout.source.registry import suffixes_of
from flatout.source.series import is_dicom_folder

NUM_LOOKED_AT = 50
"""Values of a column that are looked at."""

NOWHERE = ": see base_path"
"""How a note ends on paths that lead nowhere."""

_SUFFIX = re.compile(r"\.[a-z][a-z0-9]{0,7}(\.gz)?")


def suffix_of(name: str) -> str:
    """Lower-case suffix of a file name, `.nii.gz` and its like as one; "" for none."""
    parts = name.lower().rsplit("/", 1)[-1].rsplit(".", 2)
    if len(parts) == 3 and parts[2] == "gz":
        return f".{parts[1]}.gz"
    return f".{parts[-1]}" if len(parts) > 1 and parts[0] else ""


@cache
def kinds_by_suffix() -> dict[str, str]:
    """The kind of field that each decodable suffix speaks for. npy, csv and txt could be several kinds:
    they are taken as what keeps them as they are."""
    found: dict[str, str] = {}
    for kind in ("volume", "image", "signal", "array", "sequence"):
        for suffix in suffixes_of(kind):
            found.setdefault(suffix, kind)
    found |= dict.fromkeys((".npy", ".npz"), "array")
    return found | dict.fromkeys((".csv", ".tsv", ".txt"), "sequence")


def first_values(table: pa.Table, column: str, num: int = NUM_LOOKED_AT) -> list[object]:
    """The first values of a column that are not missing."""
    return [value for value in table[column].slice(0, 20 * num).to_pylist() if value is not None][:num]


def common_suffix(paths: Iterable[object]) -> str:
    """The suffix that most of these paths have; "/" where they have none: folders of DICOM files."""
    suffixes = Counter(suffix_of(path) for path in paths if isinstance(path, str))
    if not suffixes:
        return ""
    suffix = suffixes.most_common(1)[0][0]
    return suffix if suffix in kinds_by_suffix() or _SUFFIX.fullmatch(suffix) else "/"


def find_path_columns(table: pa.Table, base: Path, allow_outside: bool = False) -> tuple[list[str], list[str]]:
    """Columns of text whose values are paths, in the table's order, and notes on those that lead nowhere.

    Names of files in a column of ids are keys if they lead nowhere and another column's paths lead to files.
    """
    found: dict[str, str] = {}
    for name in table.column_names:
        if not pa.types.is_large_string(table[name].type):
            continue
        values = [value for value in first_values(table, name) if isinstance(value, str)]
        if not values:
            continue
        num_files = sum(_is_file(value, base, allow_outside) for value in values)
        if _are_paths(values, num_files, base, allow_outside):
            leads_nowhere = not num_files and not _any_series(values, base, allow_outside)
            note = f"none of the first {len(values)} paths of '{name}' exists below {base}{NOWHERE}"
            found[name] = note if leads_nowhere else ""
    if not all(found.values()):
        found = {name: note for name, note in found.items() if not (note and name.lower() in ID_NAMES)}
    return list(found), [note for note in found.values() if note]


def _are_paths(values: list[str], num_files: int, base: Path, allow_outside: bool) -> bool:
    suffixes = [suffix_of(value) for value in values]
    num_known = sum(suffix in kinds_by_suffix() for suffix in suffixes)
    if num_known >= 0.9 * len(values):
        return True
    num_suffixes = sum(_SUFFIX.fullmatch(suffix) is not None for suffix in suffixes)
    if num_files and num_suffixes * 2 > len(values):
        return True
    return num_suffixes == 0 and _any_series(values, base, allow_outside)


def _is_file(value: str, base: Path, allow_outside: bool) -> bool:
    try:
        return resolve_path(value, base, allow_outside).is_file()
    except SampleError:
        return False


def _any_series(values: Iterable[str], base: Path, allow_outside: bool) -> bool:
    """Whether a value names a folder of DICOM files; a class name that is also a folder does not."""
    for value in dict.fromkeys(values):
        try:
            if is_dicom_folder(os.fspath(resolve_path(value, base, allow_outside))):
                return True
        except SampleError:
            continue
    return False
