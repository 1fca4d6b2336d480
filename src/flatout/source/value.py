"""Plain manifest cells as arrays: a label, a number, a text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import SampleError
from flatout.source.array import cast, plan_dtype
from flatout.types import Array

if TYPE_CHECKING:
    from flatout.config.fields import LabelField, ScalarField, TextField

MAX_SHOWN = 20

_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,18})(\.0*)?")
_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?")
_DIGITS = re.compile(r"-?[0-9]+(\.0*)?")


def make_value(name: str, field: LabelField | ScalarField | TextField) -> Callable[[Any], Array]:
    """The function that turns a cell into an array: label () int64, scalar () float32, text (n,) uint8.

    It raises SampleError for a cell that is missing or no such value.

    Raises:
        ConfigError: `dtype` is no numeric dtype.
    """
    if field.kind == "text":
        return partial(make_text, name)
    dtype = plan_dtype(name, field.dtype)
    if field.kind == "scalar":
        return partial(_make_scalar, name, dtype or np.dtype(np.float32))
    positions = None if field.classes is None else {text: at for at, text in enumerate(field.classes)}
    return partial(_make_label, name, dtype, positions)


def _make_scalar(name: str, dtype: np.dtype[Any], value: Any) -> Array:
    return cast(np.asarray(read_number(name, value)), dtype)


def _make_label(name: str, dtype: np.dtype[Any] | None, positions: dict[str, int] | None, value: Any) -> Array:
    return cast(np.asarray(read_label(name, value, positions), np.int64), dtype)


def read_label(name: str, value: Any, positions: dict[str, int] | None) -> int:
    """The class number of a cell: an integer, or the position of its class name.

    With class names an integer is a position as well, unless the names are numbers themselves.
    """
    if is_missing(value):
        raise SampleError("check", f"field '{name}': missing label")
    number = _whole_number(value)
    if positions is None:
        if number is None or not -(2**63) <= number < 2**63:
            raise SampleError(
                "check",
                f"field '{name}': {value!r} is no class number, and the column is one of integers; correct it, "
                "or set classes to use names",
            )
        return number
    text = _name_among(value, positions)
    if text in positions:
        return positions[text]
    if number is not None and 0 <= number < len(positions) and not any(map(_is_digits, positions)):
        return number
    known = ", ".join(list(positions)[:MAX_SHOWN]) + (", ..." if len(positions) > MAX_SHOWN else "")
    raise SampleError("check", f"field '{name}': unknown class '{text}' (known: {known})")


def collect_classes(values: Iterable[Any], known: Sequence[str] | None) -> list[str] | None:
    """The class names of a label column: `known` ones in their order, then new ones sorted.

    None where nothing is known and at least half of the distinct values are integers: such labels are numbers
    already, and one word among them is a typo, not a reason to number all of them anew. It stays None for an
    empty `known`: a store of integers. With known names, a column mostly of integers holds positions and
    brings no new names. Missing cells are skipped.
    """
    present = [value for value in values if not is_missing(value)]
    first = dict.fromkeys(known or [])
    names = {_name_among(value, first) for value in present}
    num_integers = len(names) - len({_name_among(v, first) for v in present if _whole_number(v) is None})
    if not first:
        is_numbered = known is not None or 2 * num_integers >= len(names)
        return None if is_numbered else sorted(names)
    if 2 * num_integers > len(names) and not any(map(_is_digits, first)):
        return list(first)
    return [*first, *sorted(names.difference(first))]


def class_name(value: Any) -> str:
    """A cell as the name of a class; 1, 1.0, True and " 1" are all "1", but "01" is a name of its own."""
    number = _whole_number(value)
    return str(value).strip() if number is None else str(number)


def _name_among(value: Any, known: Container[str]) -> str:
    """The name of a cell's class: its very text, if that is known."""
    text = str(value).strip()
    return text if text in known else class_name(value)


def read_number(name: str, value: Any) -> float | int:
    """A cell as a number; text is read as one.

    Raises:
        SampleError: missing, or no number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise SampleError("check", f"field '{name}': missing number")
    try:
        if isinstance(value, int | np.integer | np.bool_) and -(2**63) <= int(value) < 2**64:
            return int(value)
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        hint = comma_hint(value) if isinstance(value, str) else ""
        raise SampleError("check", f"field '{name}': {value!r} is no number{hint}") from error


def comma_hint(text: str) -> str:
    """The end of a message on a text that would be a number with a point in place of its comma."""
    return "; write a point where it has a decimal comma" if _COMMA.fullmatch(text.strip()) else ""


def make_text(name: str, value: Any) -> Array:
    """A cell as its UTF-8 bytes, (n,) uint8; an empty text is one, a missing cell is not."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise SampleError("check", f"field '{name}': missing text")
    if isinstance(value, list | dict | tuple | np.ndarray):
        raise SampleError("check", f"field '{name}': a {type(value).__name__} is no text")
    try:
        data = bytes(value) if isinstance(value, bytes | bytearray) else str(value).encode()
        data.decode()
    except UnicodeError as error:
        raise SampleError("check", f"field '{name}': no UTF-8 text: {error}") from error
    return np.frombuffer(data, np.uint8)


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing: None, NaN, or no text but spaces."""
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and not value.strip())


def _whole_number(value: Any) -> int | None:
    """The integer a cell stands for; None when it is none."""
    if isinstance(value, int | np.integer | np.bool_):
        return int(value)
    if isinstance(value, float | np.floating):
        return int(value) if value.is_integer() else None
    if not isinstance(value, str) or not (found := _INTEGER.fullmatch(value.strip())):
        return None
    return int(found[1])


def _is_digits(text: str) -> bool:
    """Whether a name looks like an integer, be it one with leading zeros or a point."""
    return _DIGITS.fullmatch(text) is not None
