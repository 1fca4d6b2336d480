"""Things made when first used: public names of a package, values of an object."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`: name -> attribute of `package.homes[name]`."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        found = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, found)  # the next use costs nothing
        return found

    return find


if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  used in its place
        """functools.cached_property without its lock, as in Python 3.12.

        Up to 3.11 the lock is one for all instances of a class: a fork while a thread computes the value of one
        leaves it held in the child for good, and the child hangs at the first value of any other.
        """

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            assert self.attrname is not None
            if self.attrname not in instance.__dict__:
                instance.__dict__[self.attrname] = self.func(instance)
            return instance.__dict__[self.attrname]
