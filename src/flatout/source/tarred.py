"""Tarred audio as NeMo makes it: a manifest that names members, and tar files that are read in place.

Nothing is ever extracted: the headers are scanned once, and a sample is a range of bytes of a tar file.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flatout.errors import ManifestError
from flatout.source.arrow import as_text, join_text
from flatout.source.files import FileState, SourceFile, file_state

MAX_TARS = 100_000
"""Most files that a range such as {0..511} may stand for."""

MISSING, PLAIN, SEVERAL = -1, -2, -3
"""In place of a tar's number: no such member, a file of its own beside the tars, several such members."""

MAX_SHOWN = 100
"""Characters of a member's name in a message."""

NUM_LOOKED = 8
"""Rows of a manifest whose files are looked for before all of it are taken for plain files."""

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")
_SEGMENT = r"-sub\d+(\.[^./]*)$"


@dataclass(frozen=True)
class TarIndex:
    """Where the member of each manifest row stands; 20 bytes a row."""

    column: str
    tars: tuple[Path, ...]
    tar_of: NDArray[np.int32]
    """Tar file of each row; MISSING, PLAIN or SEVERAL where there is none."""
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    states: tuple[FileState, ...]
    """Of each tar before its members were looked up."""

    def take(self, indices: NDArray[np.int64]) -> TarIndex:
        return replace(self, tar_of=self.tar_of[indices], offset=self.offset[indices], size=self.size[indices])

    def file_of(self, index: int, name: str) -> SourceFile | str:
        """The member of one row, or its path. Where there is no member: a file that says so when read."""
        tar = int(self.tar_of[index])
        if tar == PLAIN:
            return name
        if tar < 0:
            return SourceFile.absent(self.tars[0], name, self._why_none(name, tar))
        place = int(self.offset[index]), int(self.size[index])
        return SourceFile(self.tars[tar], name, *place, indexed=self.states[tar])

    def _why_none(self, name: str, tar: int) -> str:
        shown = Path(name).name.replace("\0", "?")[:MAX_SHOWN]
        first = self.tars[0].name
        tars = first if len(self.tars) == 1 else f"{len(self.tars):,} tars ({first}, ...)"
        if tar == SEVERAL:
            return f"several members '{shown}' in {tars}; give the row its shard_id, or the member's folder"
        return f"no member '{shown}' in {tars}; add the tar that has it to tarred_audio_filepaths"


@dataclass(frozen=True)
class _Members:
    """Every regular file in the tars."""

    names: pa.Array
    tar_of: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]


def index_tars(
    table: pa.Table,
    column: str,
    tars: Sequence[Path],
    parts: Sequence[slice] = (),
    is_file: Callable[[str], bool] = lambda name: False,
) -> tuple[TarIndex, list[str]]:
    """Where each row's member stands, and notes on what is missing or odd.

    A name is looked for as it is (in the row's own `shard_id` first, then anywhere), then without NeMo's
    `-sub1` that marks a further segment of one file, then by its last part alone.

    Args:
        parts: rows of one manifest each, of which some may be of plain files: those without a member of its
            full name, where `is_file` knows one of the first.

    Raises:
        ManifestError: a tar file is missing, compressed, or no tar file.
    """
    states = tuple(map(file_state, tars))  # before they are read: what is replaced meanwhile is found
    members, notes = _scan_all(tars)
    wanted = _normalised(_text(table[column]))
    shards = _text(table["shard_id"]) if "shard_id" in table.column_names else None
    own_shards = pa.array([_shard_number(path) for path in tars], pa.large_string())
    found = np.full(len(wanted), MISSING, np.int64)
    whole = pc.replace_substring_regex(wanted, _SEGMENT, r"\1")

    def look(names: pa.Array, have: pa.Array) -> None:
        if shards is not None:
            have_shards = own_shards.take(pa.array(members.tar_of))
            _fill(found, _pair(shards, names), _pair(have_shards, have))
        _fill(found, names, have)

    look(wanted, members.names)
    look(whole, members.names)
    is_plain = _plain_rows(found, wanted, parts, is_file)
    look(_last(whole), _last(members.names))
    if is_plain.any():
        notes.append(f"{is_plain.sum():,} rows name files of their own, not members of the tar files")
    missing = (found < 0) & ~is_plain
    if missing.any():
        first = table[column][int(np.argmax(missing))].as_py()
        notes.append(
            f"{missing.sum():,} rows name no member of the tar files, or one of several (first: {first!r})"
        )
    index = TarIndex(
        column,
        tuple(tars),
        np.select([is_plain, missing], [PLAIN, found], _at(members.tar_of, found)).astype(np.int32),
        _at(members.offset, found),
        _at(members.size, found),
        states,
    )
    return index, notes


def _plain_rows(
    found: NDArray[np.int64], names: pa.Array, parts: Sequence[slice], is_file: Callable[[str], bool]
) -> NDArray[np.bool_]:
    """Rows of the parts that are not tarred. By a name's last part alone they would get another's recording."""
    is_plain = np.zeros(len(found), bool)
    for part in parts:
        first = names[part].drop_null().slice(0, NUM_LOOKED).to_pylist()
        is_plain[part] = not (found[part] >= 0).any() and any(map(is_file, first))
    return is_plain


def expand_tars(patterns: str | Sequence[str], base: Path) -> list[Path]:
    """The tar files that NeMo's pattern names: `audio_{0..15}.tar`, `audio__OP_0..15_CL_.tar`, or a list.

    Relative ones start from `base`, or from the current folder where that is where they are.
    """
    names = [name for pattern in _listed(patterns) for name in _expand(_braces(pattern))]
    if not names:
        raise ManifestError("tarred_audio_filepaths is empty; name at least one tar file")
    paths = [_placed(name, name, base) for name in names]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise ManifestError(
            f"tarred_audio_filepaths: {len(missing):,} of {len(paths):,} are missing: {missing[0]}"
        )
    return paths


def absolute_patterns(patterns: str | Sequence[str], base: Path) -> str | list[str]:
    """The same patterns so that they name the same tar files from any folder."""
    found = [str(_placed(pattern, _expand(_braces(pattern))[0], base)) for pattern in _listed(patterns)]
    return found[0] if isinstance(patterns, str) else found


def _placed(path: str, file: str, base: Path) -> Path:
    """The path from `base`, or from the current folder where only that has the file."""
    below, here = (start / Path(file).expanduser() for start in (base, Path.cwd()))
    start = Path.cwd() if here.is_file() and not below.is_file() else base
    return (start / Path(path).expanduser()).absolute()


def _listed(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _braces(pattern: str) -> str:
    """NeMo's other brackets as braces: _OP_ and _CL_ survive shells and override parsers."""
    if ".." not in pattern:
        return pattern
    return re.sub(r"(?:_OP_|[(\[<{])(\d+\.\.\d+)(?:_CL_|[)\]>}])", r"{\1}", pattern)


def _expand(pattern: str) -> list[str]:
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    if match[3] is not None:
        values = match[3].split(",")
    else:
        first, last = int(match[1]), int(match[2])
        if abs(last - first) >= MAX_TARS:
            raise ManifestError(f"'{pattern}' stands for more than {MAX_TARS:,} tar files")
        width = len(match[1]) if match[1].startswith("0") else 0
        step = 1 if last >= first else -1
        values = [f"{i:0{width}d}" for i in range(first, last + step, step)]
    rests = _expand(pattern[match.end() :])
    if len(values) * len(rests) > MAX_TARS:
        raise ManifestError(f"'{pattern}' stands for more than {MAX_TARS:,} tar files")
    return [f"{pattern[: match.start()]}{value}{rest}" for value in values for rest in rests]


def _scan_all(tars: Sequence[Path]) -> tuple[_Members, list[str]]:
    names: list[str] = []
    places: list[tuple[int, int, int]] = []
    notes: list[str] = []
    for number, path in enumerate(tars):
        notes += _scan(path, number, names, places)
    table = np.array(places, np.int64).reshape(-1, 3)
    text = _normalised(pa.array(names, pa.large_string()))
    return _Members(text, table[:, 0].astype(np.int32), table[:, 1], table[:, 2]), notes


def _scan(path: Path, number: int, names: list[str], places: list[tuple[int, int, int]]) -> list[str]:
    """Appends the members of one tar; about 20 us a member."""
    num_refused, last, num_bytes, num_before = 0, -1, path.stat().st_size, len(places)
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                # A header with a negative size leads backwards, for ever.
                if member.size < 0 or tar.offset <= last or member.offset_data + member.size > num_bytes:
                    raise tarfile.ReadError("a member's size leads outside the file")
                last = tar.offset
                tar.members = []  # type: ignore[attr-defined]  # it would keep every header
                if not member.isreg() or member.issparse() or not _is_text(member.name):
                    num_refused += not member.isdir()
                    continue
                names.append(member.name)
                places.append((number, member.offset_data, member.size))
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        if last < 0:
            raise ManifestError(f"{path} is not an uncompressed tar file: {error}") from error
        return [f"{path.name} is damaged after {len(places) - num_before:,} members: {error}"]
    return (
        [f"{path.name}: {num_refused:,} members are links, sparse or special; refused"] if num_refused else []
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fill(found: NDArray[np.int64], wanted: pa.Array, have: pa.Array) -> None:
    """Sets the member of each row still without one whose name stands in `have`: SEVERAL, if more than once."""
    encoded = have.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    named = np.flatnonzero(codes >= 0)
    if not len(named):
        return
    counts = np.bincount(codes[named])
    place = np.zeros(len(counts), np.int64)
    place[codes[named]] = named
    match = pc.index_in(wanted, encoded.dictionary).fill_null(-1).to_numpy(zero_copy_only=False)
    known = (match >= 0) & (found < 0)
    found[known] = np.where(counts[match[known]] == 1, place[match[known]], SEVERAL)


def _at(values: NDArray[Any], found: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(values):
        return np.zeros(len(found), np.int64)
    return values[np.maximum(found, 0)].astype(np.int64)


def _text(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_floating(column.type):  # shard_id beside rows that lack it
        column = column.cast(pa.int64())
    return as_text(column)


def _normalised(names: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(names, r"^(\./+)+", "")


def _last(names: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(names, r"^.*/", "")


def _pair(shards: pa.Array, names: pa.Array) -> pa.Array:
    return join_text(shards, names, by="\n")


def _shard_number(path: Path) -> str | None:
    """The last number in a tar's name, as NeMo's shard_id counts: audio_12.tar is 12."""
    numbers = re.findall(r"\d+", path.stem)
    return str(int(numbers[-1])) if numbers else None
