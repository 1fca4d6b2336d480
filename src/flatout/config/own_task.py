"""A user's own task, "package.module:Name": found beside the config file, its defaults read like others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any

from flatout.errors import ConfigError, MissingDependencyError


def is_own_task(task: Any) -> bool:
    """Whether this names a class rather than one of the ready tasks."""
    return isinstance(task, str) and ":" in task


def own_defaults(task: str, folder: Path | None) -> dict[str, Any]:
    """The settings that the class has as `defaults`.

    Raises:
        ConfigError: it cannot be imported, or its defaults are no mapping.
    """
    defaults = getattr(load_own(task, folder), "defaults", {})
    if not isinstance(defaults, Mapping):
        raise ConfigError(f"task '{task}': defaults is {defaults!r}; wanted settings by name")
    return dict(defaults)


def load_own(task: str, folder: Path | None) -> Any:
    """A user's own class, from a module beside the config file, in the current folder, or installed.

    Raises:
        ConfigError, MissingDependencyError: as `load_named`.
    """
    for place in (Path.cwd(), folder):  # the config's folder goes first
        if place is not None and str(place) not in sys.path:
            sys.path.insert(0, str(place))
    return load_named(task)


def load_named(target: str) -> Any:
    """The object that "package.module:name" names.

    Raises:
        ConfigError: the module is not there, fails while it is imported, or has no such name.
        MissingDependencyError: the module says that an optional library is missing.
    """
    module_name, _, name = target.partition(":")
    try:
        found: Any = import_module(module_name)
    except MissingDependencyError:
        raise
    except Exception as error:  # whatever a user's module does while it is imported
        raise ConfigError(f"'{target}' cannot be imported: {_told(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"'{module_name}' has no '{part}' (wanted by '{target}')")
        found = getattr(found, part)
    return found


def _told(error: Exception) -> str:
    """What went wrong, with file and line where the module was found at all."""
    if isinstance(error, ModuleNotFoundError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = [
        f for f in extract_tb(error.__traceback__) if "importlib" not in f.filename and f.filename != __file__
    ]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
    return f"{where}{type(error).__name__}: {error}"
