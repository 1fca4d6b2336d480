"""Which values are plain data: they say the same in every process, unlike generators, files and caches."""

from __future__ import annotations

import array
import contextlib
import datetime
import decimal
import fractions
import functools
import re
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any

import numpy as np

_LEAVES = (
    bool, int, float, complex, str, bytes, bytearray, PurePath, Enum, range, slice, re.Pattern, array.array,
    np.generic, np.dtype, np.ufunc, BuiltinFunctionType, type, datetime.date, datetime.time, datetime.timedelta,
    datetime.tzinfo, decimal.Decimal, fractions.Fraction,
)  # fmt: skip
_SEQUENCES = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_RECORDS = (Namespace, SimpleNamespace)


def is_data(value: object, is_steady: Callable[[object], bool]) -> bool:
    """Numbers, text, arrays, tables, records and containers of these; also functions that carry just these.

    `is_steady` decides on functions and on instances of other classes: whether use leaves them as they are.
    """
    pending = [value]
    seen: dict[int, object] = {}  # holding an item keeps its id from being given away
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        inner = _inside(item, is_steady)
        if inner is None:
            return False
        pending.extend(inner)
    return True


def has_code(value: object) -> bool:
    """Whether a container holds functions or classes: a registry, which grows with what is imported."""
    return isinstance(value, _SEQUENCES + _MAPPINGS) and any(
        isinstance(item, FunctionType | type) for item in items_of(value)
    )


def items_of(value: object) -> list[Any]:
    """What a container holds; of a mapping its values too."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, _SEQUENCES) else []


def _inside(item: Any, is_steady: Callable[[object], bool]) -> Iterable[Any] | None:
    """What an item is made of, none for a leaf; None: it is not data."""
    if item is None or item is ... or isinstance(item, _LEAVES) or _is_table(item):
        return ()
    if type(item) is np.ndarray or isinstance(item, np.memmap | np.ma.MaskedArray):
        return list(item.flat) if item.dtype.hasobject else ()
    if type(item) in _SEQUENCES or type(item) in _MAPPINGS:
        return items_of(item)
    if isinstance(item, functools.partial):
        return (item.func, *item.args, *item.keywords.values())
    if isinstance(item, FunctionType):
        cells = [cell.cell_contents for cell in item.__closure__ or () if _is_set(cell)]
        return cells if is_steady(item) else None
    if type(item) in _RECORDS:
        return list(vars(item).values())
    if isinstance(item, tuple) or is_steady(item):
        return [*_attributes(item), *(item if isinstance(item, tuple) else items_of(item))]
    return None


def _is_table(item: object) -> bool:
    """A torch tensor or a pandas table, if these are loaded at all: whoever holds one has imported it."""
    torch, pandas = sys.modules.get("torch"), sys.modules.get("pandas")
    kinds = [getattr(torch, "Tensor", None), getattr(torch, "dtype", None), getattr(torch, "device", None)]
    kinds += [getattr(pandas, name, None) for name in ("DataFrame", "Series", "Index", "Timestamp")]
    return isinstance(item, tuple(kind for kind in kinds if isinstance(kind, type)))


def _attributes(item: object) -> list[Any]:
    found = list(getattr(item, "__dict__", {}).values())
    for name in (name for cls in type(item).__mro__ for name in _slots(cls)):
        with contextlib.suppress(AttributeError):  # not set
            found.append(object.__getattribute__(item, name))
    return found


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
