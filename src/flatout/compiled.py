"""Functions as machine code, made by Numba at their first call and kept on disk for later processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

if numba.config.DISABLE_JIT:  # a way to debug: loops would take a thousand times as long as without them
    raise ImportError("NUMBA_DISABLE_JIT is set")


def compiled(function: F, **options: Any) -> F:
    """The function as machine code that runs outside the interpreter's lock and starts no threads."""
    options = {"nogil": True, "error_model": "numpy", **options}
    try:
        made: F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # nowhere to keep it: neither beside the source nor in the user's folder
        made = numba.njit(**options)(function)
    return made
