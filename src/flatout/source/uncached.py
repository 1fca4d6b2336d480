"""Importing a user's modules without leaving machine-readable copies of them beside them.

Python takes such a copy for up to date if size and second of the last change are the same. A transform that was
edited twice in a second would be run as it was before, under the fingerprint of what it is now.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

INSTALLED = {"site-packages", "dist-packages"}
_STANDARD = Path(os.__file__).parent


@contextmanager
def keeping_no_bytecode() -> Iterator[None]:
    """Modules that are imported meanwhile leave no copy; those of installed packages do, for the next import.

    Not by `sys.dont_write_bytecode`, which is one for all threads and all modules.
    """
    finder: Any = _Finder()
    ours = sys.meta_path
    ours.insert(ours.index(PathFinder) if PathFinder in ours else len(ours), finder)
    try:
        yield
    finally:
        with suppress(ValueError):
            ours.remove(finder)


class _Finder:
    """Finds what Python itself would find in its folders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader and _is_users(name, spec.loader.path):
            spec.loader = _Uncached(spec.loader.name, spec.loader.path)
        return spec


class _Uncached(SourceFileLoader):
    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Where the import system would write the copy."""


def _is_users(name: str, path: str) -> bool:
    place = Path(path)
    is_installed = not INSTALLED.isdisjoint(place.parts) or place.is_relative_to(_STANDARD)
    return not is_installed and name.partition(".")[0] != "flatout"
