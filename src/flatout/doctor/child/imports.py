"""Code that runs when the script has imported a module: nothing is imported before the script wants it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], None]


class AfterImport:
    """A finder that finds nothing itself: others find the module, it adds a last step to its import."""

    def __init__(self, then: Mapping[str, Then]) -> None:
        self._then = dict(then)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with our step after its code; None for modules that are not waited for."""
        then = self._then.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _add_step(spec.loader, then)
        return spec


def _add_step(loader: Any, then: Then) -> None:
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        then(module)

    loader.exec_module = exec_module


def run_after_import(then: Mapping[str, Then]) -> None:
    """Call each function with its module: now if it is there already, otherwise once it is imported."""
    waiting = {}
    for name, function in then.items():
        module = sys.modules.get(name)
        if module is None:
            waiting[name] = function
        else:
            function(module)
    if waiting:
        sys.meta_path.insert(0, AfterImport(waiting))
