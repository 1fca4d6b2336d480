"""Fingerprint: what a stored sample depends on besides its raw file, and what changed since it was made.

It is the same in every process and wherever the project lies, and does not hold the Python release. It sees
the code (comments, layout and docstrings apart), the versions of installed libraries, the parameters, the
values that an object carries, and those of the globals, class attributes and defaults that the code reads, as
far as they are plain data that lasts (`code/globals.py`). It does not see data files that the code reads, nor
modules whose names are put together at run time: give a `version` for these, and change it when the result
changes.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from types import MethodType
from typing import Any

from blake3 import blake3

from flatout.errors import ConfigError
from flatout.store.code.objects import ObjectWalk
from flatout.store.parameters import changes_between, to_json_value

ALGORITHM = 1
"""Raised when the same code would give another fingerprint; then every store says why it is out of date."""

_OF_CODE = ("global ", "method ", "definition")
"""Values that count only while the code reads them and its file does not fix them."""


@dataclass(frozen=True)
class Fingerprint:
    """Two equal digests: the same code, libraries and parameters. The rest says what differs if not."""

    digest: str
    target: str = ""
    """module:qualname of the callable; empty for settings."""
    files: dict[str, str] = field(default_factory=dict)
    """Hash of each file of the project that takes part, by its path inside the project."""
    distributions: dict[str, str] = field(default_factory=dict)
    """Version of each installed library that those files import."""
    state: dict[str, str] = field(default_factory=dict)
    """Hash of each value that the object carries, by name; values themselves stay out of the store."""
    params: dict[str, Any] = field(default_factory=dict)
    version: str | None = None
    notes: tuple[str, ...] = ()
    """What could be compared only in part; no part of the digest."""
    algorithm: int = ALGORITHM

    def to_json(self) -> dict[str, Any]:
        """Plain values that `from_json` takes back."""
        return asdict(self) | {"notes": list(self.notes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fingerprint:
        """What `to_json` gave; keys of a later release are left out, the digest tells such a one apart."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"notes": tuple(data.get("notes", ()))})


def fingerprint_callable(
    target: Callable[..., Any] | type | object, params: Mapping[str, Any], version: str | None = None
) -> Fingerprint:
    """Whatever makes samples (function, partial, method, class, instance, Dataset) and its parameters in.

    With a `version` only that and the parameters count: neither code nor the values the object carries.
    """
    walk = ObjectWalk()
    if version is not None:
        return _sealed(target=_name_of(target), params=to_json_value(params), version=version)
    try:
        name, parts = walk.take_apart(target)
        state = {key: walk.hash_value(value) for key, value in parts.items()}
        walk.definitions.settle()
    except RecursionError as error:
        raise ConfigError(
            f"the values inside {_name_of(target)} are nested too deeply to compare; "
            "set transform_version, and change it when the result changes"
        ) from error
    found = walk.definitions
    for module in _home_modules(target):
        found.walk.add_module(module, is_root=True)
    return _sealed(
        target=name,
        files=_sorted(found.walk.files),
        distributions=_sorted(found.walk.distributions),
        state=_sorted(state | found.values),
        params=to_json_value(params),
        notes=tuple(sorted(found.notes)),
    )


def fingerprint_settings(parts: Mapping[str, Any]) -> Fingerprint:
    """Settings of built-in decoders in, with the version number of each decoder among them."""
    return _sealed(params=to_json_value(parts))


def explain_difference(old: Fingerprint, new: Fingerprint) -> list[str]:
    """What changed from one fingerprint to the other, a line each; empty if they are equal."""
    if old.digest == new.digest:
        return []
    found = list(_heads(old, new))
    if old.version is None and new.version is None:
        found += [*_files(old, new), *_distributions(old, new)]
        found += _states(old, new)
    found += [f"parameter {line}" for line in changes_between(old.params, new.params)]
    return found or ["the fingerprint was made by another release of flatout"]


def _sealed(**parts: Any) -> Fingerprint:
    """A fingerprint with the digest over its parts; with a version the target's name does not count."""
    open_one = Fingerprint(digest="", **parts)
    counted = {key: value for key, value in open_one.to_json().items() if key not in ("digest", "notes")}
    if open_one.version is not None:
        counted["target"] = ""
    text = json.dumps(counted, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Fingerprint(digest=blake3(text.encode()).hexdigest(), **parts)


def _sorted(values: dict[str, str]) -> dict[str, str]:
    return dict(sorted(values.items()))


def _name_of(target: object) -> str:
    while isinstance(target, functools.partial):
        target = target.func
    named = target if hasattr(target, "__qualname__") else type(target)
    return f"{getattr(named, '__module__', '')}:{getattr(named, '__qualname__', '')}"


def _home_modules(target: object) -> Iterator[str]:
    """The modules that define the target itself, of a class also its bases'."""
    while isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, MethodType):
        target = target.__self__
    if isinstance(target, type):
        yield from (base.__module__ for base in target.__mro__[:-1])
    elif isinstance(getattr(target, "__qualname__", None), str) and getattr(target, "__module__", None):
        yield str(target.__module__)
    else:
        yield from _home_modules(type(target))


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))


def _heads(old: Fingerprint, new: Fingerprint) -> Iterator[str]:
    if old.algorithm != new.algorithm:
        yield f"flatout computes fingerprints in another way ({old.algorithm} -> {new.algorithm})"
    if old.version != new.version:
        yield f"transform_version changed from {_shown(old.version)} to {_shown(new.version)}"
    elif old.target != new.target and old.version is None:
        yield f"transform changed from {old.target or 'built-in'} to {new.target or 'built-in'}"


def _shown(version: str | None) -> str:
    return "none (the code itself)" if version is None else f"'{version}'"


def _files(old: Fingerprint, new: Fingerprint) -> Iterator[str]:
    for label in _differing(old.files, new.files):
        if label in old.files and label in new.files:
            yield f"{label} changed"
        else:
            yield f"{label} is {'now' if label in new.files else 'no longer'} used"


def _states(old: Fingerprint, new: Fingerprint) -> Iterator[str]:
    for name in _differing(old.state, new.state):
        if (name in old.state and name in new.state) or not name.startswith(_OF_CODE):
            yield f"{name} changed"
        else:
            yield f"{name} is {'now' if name in new.state else 'no longer'} compared"


def _distributions(old: Fingerprint, new: Fingerprint) -> Iterator[str]:
    for name in _differing(old.distributions, new.distributions):
        before, after = old.distributions.get(name), new.distributions.get(name)
        if before and after:
            yield f"{name} {before} -> {after}"
        else:
            yield f"{name} {after or before} is {'now' if after else 'no longer'} used"
