"""Calls that wait for the device (`.item()`, `.cpu()`, ...), by the user's file and line."""

from __future__ import annotations

import functools
import threading
from time import perf_counter
from typing import Any

import torch

from flatout.doctor.child.watch import WATCH
from flatout.doctor.patches.frames import users_place

CALLS = ("item", "cpu", "numpy", "tolist", "__float__", "__int__", "__bool__")
WORDS = {"__float__": "float()", "__int__": "int()", "__bool__": "if tensor"}
LIBRARY_PHASES = ("wait", "optimiser", "backward")
"""Inside them it is a dataset's or torch's own call, not one of the loop."""


def patch_sync() -> None:
    """Tensor's methods, at the class."""
    for name in CALLS:
        setattr(torch.Tensor, name, _watched(name, getattr(torch.Tensor, name)))
    torch.cuda.synchronize = _watched_device("cuda.synchronize", torch.cuda.synchronize)


def _watched(name: str, original: Any) -> Any:
    watch, stack, is_compiling, identify = WATCH, WATCH.stack, torch.compiler.is_compiling, threading.get_ident
    word = WORDS.get(name, f".{name}()")

    @functools.wraps(original)
    def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not watch.is_on or identify() != watch.thread:
            return original(self, *args, **kwargs)
        if stack and _is_librarys(stack):
            return original(self, *args, **kwargs)
        start = perf_counter()
        try:
            return original(self, *args, **kwargs)
        finally:
            watch.add(("sync", start, perf_counter(), *users_place(), word))

    return call


def _is_librarys(stack: list[str]) -> bool:
    return stack[-1] in LIBRARY_PHASES or stack[-1] == "log"


def _watched_device(word: str, original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not WATCH.is_here():
            return original(*args, **kwargs)
        start = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            WATCH.add(("sync", start, perf_counter(), *users_place(), word))

    return call
