"""Which kind of field one column of plain values makes, or why it makes none."""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flatout.source.keys import ID_NAMES
from flatout.source.manifest import TEXT_NAMES

LABEL_WORDS = {"label", "labels", "class", "classes", "target", "diagnosis", "category", "outcome", "y"}
TEXT_WORDS = set(TEXT_NAMES)
MEASURE_WORDS = {
    "duration", "offset", "rate", "sr", "length", "len", "frames", "size", "width", "height", "bytes",
    "shard", "index", "idx", "row", "num", "start", "end", "md5", "sha256", "hash", "checksum", "column",
}  # fmt: skip
"""Columns that describe the files rather than the sample."""

MOST_CLASSES = 1000
FEW_CLASSES = 32
MANY_NUMBERS = 10
"""More different whole numbers than this may as well be quantities: an age in years."""
LONGEST_CLASS_NAME = 60
"""Longer texts are sentences, not names of classes."""


class Verdict(NamedTuple):
    """What a column is taken as: a field of this kind, or with a reason no field unless the user says so."""

    kind: str
    """The kind it is taken as, or would be if the user asked."""
    why_not: str = ""
    remark: str = ""
    """What to know about a field whose kind was a close call."""


def judge_column(name: str, column: pa.ChunkedArray) -> Verdict:
    """The kind of field for a column of numbers, texts or booleans, by its name, type and values."""
    words, present = words_of(name), _present(column)
    verdict = _judge_values(name, words, present, len(column))
    if why_not := mostly_empty(column):
        return Verdict(verdict.kind, why_not)
    if name.lower() in ID_NAMES:
        return Verdict("text" if _is_text(column) else verdict.kind, "its name is that of an id")
    if words & MEASURE_WORDS:
        is_nameless = re.fullmatch(r"column_\d+", name) is not None
        why_not = "the heading gives it no name, or just this" if is_nameless else ""
        return Verdict(_plain_kind(column.type), why_not or "by its name it describes the file")
    return verdict


def mostly_empty(column: pa.ChunkedArray) -> str:
    """A reason not to use a column that is empty in more than half of the rows; "" for others.

    One odd line is enough to add a column to JSON lines, and a field of it would refuse every other row.
    """
    num_rows, num_empty = len(column), len(column) - len(_present(column))
    if num_empty * 2 <= num_rows and num_rows:
        return ""
    return f"empty in {num_empty:,} of {num_rows:,} rows"


def num_distinct(column: pa.ChunkedArray) -> int:
    """How many different values a column has, missing ones aside."""
    return 0 if pa.types.is_null(column.type) else int(pc.count_distinct(column).as_py())


def words_of(name: str) -> set[str]:
    """`PatientID` -> patient, id; `near_duplicate_group` -> near, duplicate, group."""
    return set(re.findall(r"[a-z]+\d*|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()))


def _judge_values(name: str, words: set[str], present: pa.ChunkedArray, num_rows: int) -> Verdict:
    kind = present.type
    if _is_text(present):
        return Verdict("text") if words & TEXT_WORDS else _judge_texts(words, present, num_rows)
    if pa.types.is_boolean(kind):
        return Verdict("label")
    if not len(present) or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return Verdict(_plain_kind(kind), f"values of type {kind}")
    if words & LABEL_WORDS:
        return _judge_named_numbers(name, present)
    if not pa.types.is_integer(kind) or not _are_classes(present, num_rows):
        return Verdict("scalar")
    num_values = num_distinct(present)
    return Verdict("label", remark=_if_quantities(name, num_values) if num_values > MANY_NUMBERS else "")


def _if_quantities(name: str, num_values: int) -> str:
    return f"{num_values:,} different numbers; set fields.{name}.kind: scalar if they are quantities"


def _judge_texts(words: set[str], present: pa.ChunkedArray, num_rows: int) -> Verdict:
    """A label by its name, or because values come again; never one of sentences that do not."""
    num_values, num_present = num_distinct(present), len(present)
    most = min(MOST_CLASSES, max(FEW_CLASSES, num_rows // 2))
    come_again = num_values < num_present and num_values <= most
    is_long = (pc.max(pc.utf8_length(present)).as_py() or 0) > LONGEST_CLASS_NAME
    if words & LABEL_WORDS and (come_again or not is_long):
        return Verdict("label")
    if is_long:
        return Verdict("text", f"texts of more than {LONGEST_CLASS_NAME} characters")
    if come_again:
        return Verdict("label")
    if num_values == num_present:
        return Verdict("text", "no value comes twice")
    return Verdict("label", f"{num_values:,} different values are many for classes")


def _judge_named_numbers(name: str, present: pa.ChunkedArray) -> Verdict:
    """Numbers of a column that is called label: classes, unless they are fractions or very many."""
    whole = pc.all(pc.and_(pc.is_finite(present), pc.equal(pc.floor(present), present))).as_py()
    num_values = num_distinct(present)
    if not whole:
        return Verdict("scalar")
    if num_values > MOST_CLASSES:
        return Verdict("scalar", remark=f"{num_values:,} different values are many for classes")
    if num_values * 2 > max(len(present), FEW_CLASSES):
        return Verdict("label", remark=_if_quantities(name, num_values))
    return Verdict("label")


def _are_classes(present: pa.ChunkedArray, num_rows: int) -> bool:
    """Integers that number classes: few distinct ones, none negative."""
    return pc.min(present).as_py() >= 0 and num_distinct(present) <= min(FEW_CLASSES, max(num_rows // 2, 2))


def _present(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values that are not missing, NaN, or a text of spaces only."""
    empty = pc.is_null(column, nan_is_null=True)
    if _is_text(column):
        empty = pc.or_(empty, pc.equal(pc.utf8_trim_whitespace(column), "").fill_null(True))
    return column.filter(pc.invert(empty)) if pc.any(empty).as_py() else column


def _plain_kind(kind: pa.DataType) -> str:
    """The kind that can read any value of this type: dates and times are texts."""
    is_date = pa.types.is_temporal(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return "text" if is_date else "scalar"


def _is_text(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_large_string(column.type) or pa.types.is_string(column.type))
