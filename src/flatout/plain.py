"""Plain values of JSON in, checked dataclasses out: a record of unknown origin is read field by field."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from flatout.errors import RecordError

Read = Callable[[Any], Any]
Made = TypeVar("Made")

_WHOLE_LIMIT = 1 << 63


class _Wrong(Exception):  # noqa: N818  never leaves this file
    """What was found instead; each level on the way up puts its own name in front of the place."""

    def __init__(self, got: Any, wanted: str) -> None:
        super().__init__(wanted)
        self.got, self.wanted = got, wanted
        self.place: list[str | int] = []


def parse(text: bytes, where: str) -> Any:
    """JSON text in, its plain values out.

    Raises:
        RecordError: it is empty, cut off, or no JSON.
    """
    if not text.strip():
        raise RecordError(f"{where} is empty; a record was wanted")
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # wrong bytes, wrong JSON, numbers and nests without end
        raise RecordError(f"{where} is cut off, or no JSON at all: {_first_line(error)}") from error


def build(kind: type[Made], document: Any, where: str) -> Made:
    """The dataclass `kind` from a JSON object; names that it does not know are left out.

    A null becomes NaN where a number with a fraction is wanted: JSON has no other word for it.

    Raises:
        RecordError: a value is missing or of another type; says which, and what was wanted.
    """
    try:
        made: Made = _reader(kind)(document)
    except _Wrong as error:
        names = (json.dumps(part) for part in reversed(error.place))  # escaped: they go to a terminal
        parts = (f".{name[1:-1]}" if name.startswith('"') else f"[{name}]" for name in names)
        place = "".join(parts).lstrip(".") or "the whole"
        raise RecordError(
            f"{where} is no record that can be read: {place}: got {_shown(error.got)}, wanted {error.wanted}"
        ) from None
    return made


def _reader(kind: Any) -> Read:
    return _made_reader(kind)


@cache
def _made_reader(kind: Any) -> Read:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(_reader(arguments[1]))
    if origin in (list, tuple):
        return _row(origin, _reader(arguments[0]))
    return _object(kind) if is_dataclass(kind) else _SCALARS[kind]


def _mapping(read: Read) -> Read:
    def read_mapping(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Wrong(value, "an object")
        return {name: _inside(read, inner, name) for name, inner in value.items()}

    return read_mapping


def _row(kind: type[Any], read: Read) -> Read:
    def read_row(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Wrong(value, "a list")
        return kind(_inside(read, inner, at) for at, inner in enumerate(value))

    return read_row


def _object(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    needed = {
        field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    }

    def read_object(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Wrong(value, "an object")
        if missing := sorted(needed - value.keys()):
            raise _Wrong("nothing", f"a value for {missing[0]}")
        return kind(
            **{name: _inside(read, value[name], name) for name, read in readers.items() if name in value}
        )

    return read_object


def _inside(read: Read, value: Any, name: str | int) -> Any:
    try:
        return read(value)
    except _Wrong as error:
        error.place.append(name)
        raise


def _fraction(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(value, "a number")
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _whole(value: Any) -> int:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or abs(value) >= _WHOLE_LIMIT:
        raise _Wrong(value, "a whole number")
    return int(value)


def _only(kind: type[Any], wanted: str) -> Read:
    def read_only(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _Wrong(value, wanted)
        return value

    return read_only


_SCALARS: dict[Any, Read] = {
    float: _fraction,
    int: _whole,
    str: _only(str, "text"),
    bool: _only(bool, "true or false"),
}


def _shown(value: Any) -> str:
    text = value if value == "nothing" else json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
