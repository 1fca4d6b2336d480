"""A key for each row: a text that is unique and depends on the row alone, so that added rows move nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flatout.errors import ManifestError
from flatout.source.arrow import MISSING_WORDS, as_text, join_text, one_piece
from flatout.source.digests import digest_rows, float_texts
from flatout.source.identity import hash_keys
from flatout.source.key_rule import OFFSET, WAY_OUT, KeyRule
from flatout.source.lists import ListColumns
from flatout.source.seconds import any_seconds
from flatout.source.short_blake3 import BLOCK_BYTES, hash_short

ID_NAMES = (
    "key", "id", "uid", "uuid", "guid", "sample_id", "sampleid", "sample", "utt_id", "utterance_id",
    "utterance", "image_id", "imageid", "record_id", "recordid", "record", "file_id", "fileid", "scan_id",
    "study_uid", "series_uid", "case_id", "example_id", "name",
)  # fmt: skip
"""Columns taken as key when unique, by lower-case name, the first found first."""

_BLOCK = 65_536
_LEAST_TOGETHER = 4096
"""Keys from which on it pays to hash them together."""
_MOST_NAMED = 5
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_NUMBER = r"^-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def choose_keys(
    table: pa.Table,
    path_columns: Sequence[str] = (),
    key_column: str | None = None,
    lists: ListColumns | None = None,
    key_rule: str | None = None,
) -> tuple[pa.Array, KeyRule]:
    """The key of each row (large_string), and the rule that they follow.

    The column asked for, or the rule given. Else, in turn: a column with the name of an id, if unique and
    complete; all paths of the row, with `@offset` for segments that start later than 0 (NeMo), and with a
    hash of the content if some paths repeat or are missing; a hash of the content alone. Rows of one content
    are numbered -2, -3.

    Raises:
        ManifestError: a column asked for is incomplete or not unique; the rows are named.
    """
    if key_column is not None:
        way_out = "; mend the manifest, or name another key_column"
        keys = _complete(as_text(table[key_column]), f"key_column '{key_column}'", way_out)
        return keys, KeyRule(column=key_column)
    if key_rule is not None:
        rule = KeyRule.parse(key_rule)
        return _follow(rule, table, lists), rule
    rule = _find_rule(table, path_columns, lists)
    return _keys(rule, table, lists), rule


def key_hashes(keys: pa.Array | pa.ChunkedArray | Sequence[str]) -> NDArray[np.uint64]:
    """64-bit hash of each key, see `hash_key`: 0.2 us a key of a large manifest, 0.5 where it is long.

    Two keys may share a hash (1 chance in 370,000 among 10 million); whoever relies on it looks for that.
    """
    texts = as_text(keys) if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys, pa.large_string())
    parts = [_hash_part(texts[start : start + _BLOCK]) for start in range(0, len(texts), _BLOCK)]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _hash_part(texts: pa.Array) -> NDArray[np.uint64]:
    if len(texts) < _LEAST_TOGETHER:
        return hash_keys(texts.to_pylist())
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(ends)
    is_short = lengths <= BLOCK_BYTES
    hashes = np.empty(len(texts), np.uint64)
    hashes[is_short] = hash_short(np.frombuffer(data or b"", np.uint8), ends[:-1][is_short], lengths[is_short])
    hashes[~is_short] = hash_keys(texts.filter(pa.array(~is_short)).to_pylist())
    return hashes


def _find_rule(table: pa.Table, path_columns: Sequence[str], lists: ListColumns | None) -> KeyRule:
    by_name = {name.lower(): name for name in reversed(table.column_names)}
    for name in ID_NAMES:
        if name in by_name and _is_usable(as_text(table[by_name[name]])):
            return KeyRule(column=by_name[name])
    columns = _all_columns(table, lists)
    paths = tuple(name for name in path_columns if name in table.column_names)
    if not paths:
        return KeyRule(content=columns)
    rule = KeyRule(paths=paths, has_offset=_has_offset(table))
    if _is_usable(_from_paths(rule, table)):
        return rule
    # All keys get the content: were it only those that repeat, a later repeat would change an earlier key.
    others = tuple(name for name in columns if name not in paths)
    return KeyRule(paths=paths, has_offset=rule.has_offset, content=others)


def _all_columns(table: pa.Table, lists: ListColumns | None) -> tuple[str, ...]:
    return (*table.column_names, *(lists.names if lists else ()))


def _keys(rule: KeyRule, table: pa.Table, lists: ListColumns | None) -> pa.Array:
    if rule.column is not None:
        return as_text(table[rule.column])
    if rule.content is None:
        return _from_paths(rule, table)
    return _numbered(_with_content(rule, table, lists))


def _follow(rule: KeyRule, table: pa.Table, lists: ListColumns | None) -> pa.Array:
    """The keys by a rule that was chosen earlier, or an error that says which rows it no longer fits."""
    what = f"the keys follow key_rule '{rule}', but"
    have = _all_columns(table, lists)
    gone = [name for name in rule.columns if name not in have]
    if gone:
        raise ManifestError(f"{what} column '{gone[0]}' is gone; there are: {', '.join(have)}. {WAY_OUT}")
    if rule.content is None:
        columns = " and ".join(f"'{name}'" for name in rule.columns)
        return _complete(_keys(rule, table, lists), f"{what} {columns}", f". {WAY_OUT}")
    keys = _with_content(rule, table, lists)
    _refuse_unlike(keys, rule, table, lists)
    return _numbered(keys)


def _refuse_unlike(keys: pa.Array, rule: KeyRule, table: pa.Table, lists: ListColumns | None) -> None:
    """Rows of one content are numbered in their order, which is safe only if nothing tells them apart."""
    codes, is_repeated = _repeats(keys)
    rows = np.flatnonzero(is_repeated)
    if not len(rows):
        return
    columns = _all_columns(table, lists)
    contents = _digests(table.take(pa.array(rows)), columns, lists.take(rows) if lists else None)
    first: dict[int, int] = {}
    for at, code in enumerate(codes[rows].tolist()):
        other = first.setdefault(code, at)
        if contents[at] != contents[other]:
            raise ManifestError(
                f"the keys follow key_rule '{rule}', but {_rows(rows[[other, at]])} are alike in its columns "
                f"and differ in others only. {WAY_OUT}"
            )


def _complete(keys: pa.Array, what: str, way_out: str = "") -> pa.Array:
    """The keys, if every row has one of its own."""
    if _are_ascending(keys):
        return keys
    empty = np.flatnonzero(pc.equal(keys, "").fill_null(True).to_numpy(zero_copy_only=False))
    if len(empty):
        raise ManifestError(f"{what} is empty in {_rows(empty)}; every sample needs a key{way_out}")
    codes, is_repeated = _repeats(keys)
    if is_repeated.any():
        order = np.argsort(codes, kind="stable")
        later = order[1:][np.diff(codes[order]) == 0].min()
        told, key = _rows(np.flatnonzero(codes == codes[later])), keys[int(later)].as_py()
        raise ManifestError(f"{what} is not unique: {told} are all '{key}'{way_out}")
    return keys


def _rows(rows: NDArray[np.int64]) -> str:
    """`row 2`, or `rows 1, 3, 5`, counted from 1."""
    told = ", ".join(str(row + 1) for row in rows[:_MOST_NAMED].tolist())
    return f"row{'s' if len(rows) > 1 else ''} {told}" + (", ..." if len(rows) > _MOST_NAMED else "")


def _is_usable(keys: pa.Array) -> bool:
    """Unique and complete."""
    if _are_ascending(keys):
        return True
    if keys.null_count or pc.any(pc.equal(keys, "")).as_py():
        return False
    return bool(pc.count_distinct(keys).as_py() == len(keys))


def _are_ascending(keys: pa.Array) -> bool:
    """Whether each key follows the one before and none is empty: so most are, and no table of them is needed.

    0.8 ms for 300,000 keys, which take 24 ms to number and 44 to count."""
    if keys.null_count or not len(keys) or keys[0].as_py() == "":
        return False
    return pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py() is True


def _repeats(keys: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A number for each key's text, and whether several rows have it."""
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, (np.bincount(codes, minlength=1) > 1)[codes]


def _from_paths(rule: KeyRule, table: pa.Table) -> pa.Array:
    """All paths of each row, with `@start` where it begins later than 0 s in its file; null without any."""
    texts = [as_text(table[name]) for name in rule.paths]
    paths = [pc.if_else(pc.equal(text, "").fill_null(True), None, text) for text in texts]
    keys = join_text(*paths, by="|", missing="") if len(paths) > 1 else paths[0]
    keys = pc.if_else(pc.is_null(pc.coalesce(*paths)), None, keys)
    if not rule.has_offset:
        return keys
    # Decided row by row: a file that stands once today may be cut into segments tomorrow.
    starts = _plain_texts(table[OFFSET])
    return pc.if_else(pc.not_equal(starts, "0").fill_null(False), join_text(keys, starts, by="@"), keys)


def _has_offset(table: pa.Table) -> bool:
    return OFFSET in table.column_names and any_seconds(table[OFFSET])


def _with_content(rule: KeyRule, table: pa.Table, lists: ListColumns | None) -> pa.Array:
    hashes = _digests(table, rule.content or (), lists)
    content = pa.array([f"{value:016x}" for value in hashes.tolist()], pa.large_string())
    return join_text(_from_paths(rule, table), content, by="#", missing="") if rule.paths else content


def _digests(table: pa.Table, columns: Sequence[str], lists: ListColumns | None) -> NDArray[np.uint64]:
    """A hash of each row that does not depend on the columns' types: one word among numbers makes all text."""
    scalars = [name for name in columns if name in table.column_names]
    plain = table.select(scalars)
    for at, name in enumerate(scalars):
        plain = plain.set_column(at, name, _plain_texts(table[name]))
    return digest_rows(plain, columns, lists)


def _plain_texts(column: pa.ChunkedArray) -> pa.Array:
    """One text a cell, the same whether its column holds numbers or texts; null where it is missing."""
    array = one_piece(column)
    if pa.types.is_floating(array.type):
        return _number_texts(array.cast(pa.float64()))
    if not (pa.types.is_large_string(array.type) or pa.types.is_string(array.type)):
        return as_text(array)
    texts = pc.utf8_trim_whitespace(as_text(array))
    texts = pc.if_else(pc.is_in(texts, MISSING_WORDS), None, texts)
    is_number = pc.and_not(pc.match_substring_regex(texts, _NUMBER), pc.match_substring_regex(texts, _INTEGER))
    numbers = pc.if_else(is_number.fill_null(False), texts, None).cast(pa.float64())
    return pc.coalesce(_number_texts(numbers), texts)


def _number_texts(array: pa.Array) -> pa.Array:
    """Shortest text that reads back as the same number, without a point where it is whole; NaN is missing."""
    return pc.if_else(pc.is_nan(array).fill_null(False), None, float_texts(array))


def _numbered(keys: pa.Array) -> pa.Array:
    """Keys with -2, -3 for repeats. None of them is another's: before its number, a key ends in 16 digits."""
    if pc.count_distinct(keys).as_py() == len(keys):
        return keys
    texts: list[str] = keys.to_pylist()
    seen: dict[str, int] = {}
    for at, text in enumerate(texts):
        seen[text] = seen.get(text, 0) + 1
        if seen[text] > 1:
            texts[at] = f"{text}-{seen[text]}"
    return pa.array(texts, pa.large_string())
