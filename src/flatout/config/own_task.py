"""A user's own task, "package.module:Name": found beside the config file, its defaults read like others."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from traceback import extract_tb
from typing import Any

from flatout.config.suggest import nearest_name
from flatout.errors import ConfigError, MissingDependencyError


def is_own_task(task: Any) -> bool:
    """Whether this names a class rather than one of the ready tasks."""
    return isinstance(task, str) and ":" in task


def has_module(folder: Path, target: str) -> bool:
    """Whether the module of "package.module:name", or its package, lies in a folder."""
    name = target.partition(":")[0].partition(".")[0]
    return (folder / name).is_dir() or (folder / f"{name}.py").is_file()


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
    try:
        found: Any = import_module(target.partition(":")[0])
    except MissingDependencyError:
        raise
    except Exception as error:  # whatever a user's module does while it is imported
        raise ConfigError(f"'{target}' cannot be imported: {_told(error)}{likely_module(error)}") from error
    return find_in(found, target)


def find_in(found: Any, target: str) -> Any:
    """What the module of "package.module:name" has under that name, which may have dots.

    Raises:
        ConfigError: there is no such name; says which was likely meant.
    """
    module_name, _, name = target.partition(":")
    for part in name.split("."):
        if not hasattr(found, part):
            nearest = nearest_name(part, [other for other in dir(found) if not other.startswith("_")])
            hint = f"; did you mean '{nearest}'?" if nearest else ""
            raise ConfigError(f"'{module_name}' has no '{part}' (wanted by '{target}'){hint}")
        found = getattr(found, part)
    return found


def likely_module(error: Exception) -> str:
    """The module that was likely meant by one that is not there: of the same package, or on the path."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package, _, name = error.name.rpartition(".")
    places = getattr(sys.modules.get(package), "__path__", ()) if package else None
    nearest = nearest_name(name, [found.name for found in iter_modules(places)])
    return f"; did you mean '{package}{'.' if package else ''}{nearest}'?" if nearest else ""


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
