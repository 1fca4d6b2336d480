"""Insides: every object that a dataset's items may depend on: what hangs on it, and what its code names.

The nearest come first, so that the count is not used up on far ones.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import deque
from collections.abc import Iterator
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

MAX_LOOKED_AT = 10_000
"""Objects that are looked at."""
MAX_DEPTH = 8
MAX_OF_ONE = 64
"""Items of one list or dict that are looked at."""
LIBRARIES = sys.stdlib_module_names | {"numpy", "torch", "pandas", "pyarrow", "scipy", "h5py", "PIL"}
"""Whose code is not followed: much of it, and it draws from the known streams or from generators it gets."""
LEAVES = (str, bytes, int, float, complex, type(None), np.ndarray, torch.Tensor, ModuleType, logging.Logger)
"""Which hold nothing that is looked for."""


def insides(dataset: object) -> Iterator[tuple[str, Any]]:
    """Path and object: the dataset itself, whose path is empty, and whatever is found from there."""
    seen: set[int] = set()
    waiting: deque[tuple[str, Any, int]] = deque([("", dataset, 0)])
    while waiting and len(seen) < MAX_LOOKED_AT:
        path, value, depth = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield path.lstrip("."), value
        if depth < MAX_DEPTH:
            inner = ((f"{path}{step}", part, depth + 1) for step, part in _inside(value))
            waiting += [each for each in inner if not isinstance(each[1], LEAVES)]


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        yield from ((f"[{at}]", item) for at, item in enumerate(value[:MAX_OF_ONE]))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in [*value.items()][:MAX_OF_ONE])
    elif isinstance(value, functools.partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, BuiltinMethodType):
        yield "", value.__self__
    elif isinstance(value, staticmethod | classmethod):
        yield "", value.__func__
    elif isinstance(value, property):
        yield "", value.fget
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        own = [kind for kind in value.__mro__ if not _is_library(str(kind.__module__))]
        yield from ((f".{name}", item) for kind in own for name, item in [*vars(kind).items()])
    else:
        yield from ((f".{name}", item) for name, item in [*getattr(value, "__dict__", {}).items()])
        yield "", type(value)


def _of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What it closes over, its defaults, and the globals that it names; of modules what is named beside."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if _is_filled(cell):
            yield f".{name}", cell.cell_contents
    yield from (("", function.__defaults__), ("", function.__kwdefaults__))
    if _is_library(function.__module__ or ""):
        return
    names = _names(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield f".{name}", value
        elif not _is_library(value.__name__):
            yield from (
                (f".{name}.{inner}", vars(value)[inner]) for inner in sorted(names & vars(value).keys())
            )


def _names(code: CodeType) -> set[str]:
    """The globals and attributes that code names, functions inside it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _is_filled(cell: Any) -> bool:
    try:
        return bool(cell.cell_contents is not None)
    except ValueError:  # a variable that has no value yet
        return False
