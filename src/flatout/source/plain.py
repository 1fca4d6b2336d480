"""Plain Python values as text and back, exactly: numbers, strings, bytes, and lists, tuples, dicts of them."""

from __future__ import annotations

import base64
import json
from typing import Any

SCALARS = (bool, int, float, complex, str, bytes)
"""Types themselves, not their subclasses: an IntEnum would come back as a mere number."""


def is_plain(value: Any) -> bool:
    """Whether `to_text` holds this value exactly."""
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind is list or kind is tuple:
        return all(map(is_plain, value))
    return kind is dict and all(is_plain(key) and is_plain(item) for key, item in value.items())


def to_text(value: Any) -> str:
    """A plain value in, one line of ASCII out."""
    return json.dumps(_encode(value), separators=(",", ":"))


def from_text(text: str) -> Any:
    """What `to_text` was given."""
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [_encode(item) for item in value]
    if kind is tuple:
        return {"tuple": [_encode(item) for item in value]}
    if kind is dict:
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tuple":
        return tuple(_decode(item) for item in inner)
    if kind == "dict":
        return {_decode(key): _decode(item) for key, item in inner}
    return base64.b64decode(inner) if kind == "bytes" else complex(*inner)
