"""Parameters as plain JSON values, and the difference of two sets of them in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np

from flatout.store.code.objects import ObjectWalk

_MAX_SHOWN_CHARS = 60
_GONE = object()


def to_json_value(value: Any) -> Any:
    """Any value in, what strict JSON can hold out: equal for equal parameters, whatever their containers.

    A value that JSON has no word for (an array, an object) becomes its type and the hash of its content.
    """
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)  # strict JSON has no NaN
    if isinstance(value, Mapping):
        return {_key(key): to_json_value(item) for key, item in sorted(value.items(), key=_by_key)}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((to_json_value(item) for item in value), key=json.dumps)
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return to_json_value(value.item())
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, Enum):
        return to_json_value(value.value)
    return f"{type(value).__qualname__} {ObjectWalk().hash_value(value)}"


def changes_between(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """Two JSON values in, a line for each place where they differ out: "spacing changed from 1 to 2"."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            inner = f"{name}.{key}" if name else key
            yield from changes_between(old.get(key, _GONE), new.get(key, _GONE), inner)
    elif old is _GONE:
        yield f"{name} is new: {_shown(new)}"
    elif new is _GONE:
        yield f"{name} is gone (was {_shown(old)})"
    elif _text(old) != _text(new):
        yield f"{name} changed from {_shown(old)} to {_shown(new)}"


def _key(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(to_json_value(key))


def _by_key(item: tuple[Any, Any]) -> str:
    return _key(item[0])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _shown(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."
