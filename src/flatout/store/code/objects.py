"""ObjectWalk: the values that a callable or Dataset carries, hashed by content, never by repr() or address.

An object is taken apart as pickle would take it (`__reduce_ex__`), but nothing is pickled: only the parts are
hashed. What cannot be taken apart (an open file, a lock) counts by its type alone, and `notes` says so.
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from flatout.store.code.definitions import Definitions, Parts
from flatout.store.code.hash import hash_bytes
from flatout.store.code.plain import encode_plain


class ObjectWalk:
    """Takes objects apart; the code it meets on the way is collected in `definitions`."""

    def __init__(self) -> None:
        self.definitions = Definitions(self.hash_value)
        self._done: dict[int, tuple[object, bytes]] = {}
        self._open: set[int] = set()

    def take_apart(self, target: object) -> tuple[str, Parts]:
        """An object in, its name (module:qualname) and the values it carries out."""
        if isinstance(target, functools.partial):
            name, parts = self.take_apart(target.func)
            given: dict[Any, Any] = {**dict(enumerate(target.args)), **target.keywords}
            return name, parts | {f"argument {key}": value for key, value in given.items()}
        if isinstance(target, MethodType):
            owner, parts = self.take_apart(target.__self__)
            name, inner = self.take_apart(target.__func__)
            return name, parts | inner | {"owner": owner}
        if isinstance(target, FunctionType):
            return self.definitions.function(target)
        if isinstance(target, type):
            return self.definitions.cls(target)
        if isinstance(target, BuiltinFunctionType):
            return self._builtin(target)
        if isinstance(target, ModuleType):
            self.definitions.walk.add_import(target.__name__)
            return f"module {target.__name__}", {}
        name, parts = self.definitions.cls(type(target))
        return name, parts | self._state(target)

    def hash_value(self, value: object) -> str:
        """Any value in, a hash of its content out."""
        return hash_bytes(self._encode(value))

    def _encode(self, value: object) -> bytes:
        plain = encode_plain(value)
        if plain is not None:
            return plain
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open:
            return b"cycle"
        self._open.add(id(value))
        try:
            return self._encode_open(value)
        finally:
            self._open.discard(id(value))

    def _encode_open(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            return _joined(kind.__name__, map(self._encode, value))
        if kind in (set, frozenset):
            return _joined("set", sorted(map(self._encode, value)))
        if kind is dict:
            pairs = (_joined("", map(self._encode, pair)) for pair in value.items())
            return _joined("dict", sorted(pairs))
        name, parts = self.take_apart(value)
        code = _joined(f"object {name}", [self._encode(parts)])
        self._done[id(value)] = (value, code)  # holding the object keeps its id from being given away
        return code

    def _state(self, target: object) -> Parts:
        """The values inside an instance, by attribute."""
        try:
            reduce = copyreg.dispatch_table.get(type(target))
            reduced: Any = reduce(target) if reduce else target.__reduce_ex__(4)
        except Exception:  # whatever a class raises to say that it cannot be copied
            self.definitions.notes.add(f"values inside {type(target).__qualname__} objects are not compared")
            return {}
        if isinstance(reduced, str):
            return self._named(target, reduced)
        maker, args, state, items, pairs = (*reduced, None, None, None)[:5]
        parts: Parts = _attributes(state)
        if getattr(maker, "__module__", None) != "copyreg":
            parts["maker"] = (maker, args)
        elif len(args) > 1:
            parts["arguments"] = args
        if items is not None:
            parts["items"] = list(items)
        if pairs is not None:
            parts["pairs"] = [tuple(pair) for pair in pairs]
        return parts

    def _named(self, target: object, name: str) -> Parts:
        """A thing that pickle finds by name: a ufunc, a compiled function, one wrapped by lru_cache."""
        home = getattr(target, "__module__", None)
        if isinstance(home, str):
            self.definitions.walk.add_import(home)
        return {"name": f"{home}:{name}", "wrapped": getattr(target, "__dict__", {}).get("__wrapped__")}

    def _builtin(self, target: BuiltinFunctionType) -> tuple[str, Parts]:
        owner = target.__self__
        if target.__module__:
            self.definitions.walk.add_import(target.__module__)
        bound = {} if owner is None or isinstance(owner, ModuleType) else {"object": owner}
        return f"{target.__module__}:{target.__qualname__}", bound


def _attributes(state: object) -> Parts:
    """The state of an instance: a dict, or a pair of one and the values of its slots, or anything else."""
    both = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    parts: Parts = {}
    for part in both:
        if isinstance(part, dict):
            parts |= {f"attribute {name}": value for name, value in part.items()}
        elif part is not None:
            return {"state": state}
    return parts


def _joined(tag: str, parts: Iterable[bytes]) -> bytes:
    """Hash of a tag and parts, each with its length in front, so that no two lists give the same bytes."""
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hash_bytes(tag.encode() + b"\0" + framed).encode()
