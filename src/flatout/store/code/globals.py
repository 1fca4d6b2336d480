"""Globals: the values that code in a file reads and that the file alone does not fix.

`GAIN = float(sys.argv[1])` counts by its value, `GAIN = 2` by its file, unless something else was put there
while running. Plain data counts, and of a record (argparse's, a dataclass) just the attributes that are read.
What the code itself changes while it makes samples (a memo, a counter) does not, nor do clocks, ids and the
folder that the project lies in: these would make each run another. What is neither data nor code is named in
`notes`.
"""

from __future__ import annotations

import ast
import functools
import sys
from argparse import Namespace
from collections.abc import Callable, Container
from dataclasses import dataclass, is_dataclass
from enum import Enum
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from flatout.store.code.data import has_code, is_data, items_of
from flatout.store.code.fixed import carries_code_only, defaults_of, is_fixed
from flatout.store.code.hash import find_classes, find_named, hash_tree
from flatout.store.code.loose import Uses, members_in, names_used, values_in
from flatout.store.code.members import definition_of, written_name
from flatout.store.code.scope import Chain, bindings_in, is_of_one_process
from flatout.store.code.trees import Bindings, Trees, home_of
from flatout.store.code.walk import CodeWalk

if TYPE_CHECKING:
    from flatout.store.code.definitions import Definitions

_MAX_ITEMS = 1000
"""Of a container, how many items are looked through for functions; one of samples may hold millions."""

Place = tuple[str, Chain]
"""A module, and a global of it with the attributes that are read."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A value that code reads and that its file may not fix; `name` is what `bindings` know it by."""

    value: object
    name: str
    bindings: Bindings


class Globals:
    """Collects, while functions and classes are added, what they read; `settle` fills `values`."""

    def __init__(self, definitions: Definitions, walk: CodeWalk, hash_value: Callable[[object], str]) -> None:
        self.values: dict[str, str] = {}
        self._definitions, self._walk, self._hash_value = definitions, walk, hash_value
        self._trees = Trees(walk)
        self._pending: list[tuple[str, dict[str, Any], Uses]] = []
        self._read: dict[Place, _Read] = {}
        self._changed: set[Place] = set()
        self._followed: dict[int, object] = {}

    def add_function(self, function: FunctionType) -> dict[str, Any]:
        """A function that stands in its file in; out, what tells it from another of its name in that file."""
        home = home_of(function)
        node, tree = self._trees.node(function), self._walk.tree_of(home)
        if node is None or tree is None or not self._walk.is_own(home):
            return {}
        if self._is_new(function):
            self.add_reads(function, names_used(function.__code__))
            self._add_defaults(function)
        named = find_named(tree, function.__code__.co_qualname)
        return {"definition": hash_tree(node)} if named and node is not named[-1] else {}

    def add_class(self, cls: type) -> dict[str, Any]:
        """The same for a class; functions that were set on it since are told too."""
        tree = self._walk.tree_of(cls.__module__) if self._walk.is_own(cls.__module__) else None
        nodes = [] if tree is None else find_classes(tree, cls.__qualname__)
        if not nodes:
            return {}
        node, strangers = definition_of(cls, nodes, self._walk.is_own)
        parts: dict[str, Any] = {f"method {cls.__qualname__}.{n}": f for n, f in strangers.items()}
        if node is not nodes[-1]:
            parts[f"definition of {cls.__qualname__}"] = hash_tree(node)
        self._add_members(cls, node, strangers)
        return parts

    def _add_members(self, cls: type, node: ast.ClassDef, strangers: Container[str]) -> None:
        own, changed = bindings_in(node), self._trees.changed_of_self(cls)
        bindings = self._trees.bindings(cls.__module__) | own
        for name, function in members_in(cls):
            if written_name(cls, name) not in own:
                continue  # generated, as a dataclass's __init__ is
            self._follow_value(function)
            if name not in strangers and not carries_code_only(function):
                self._add_read((cls.__module__, (cls.__qualname__, name)), function, "", bindings)
        for name, value in values_in(cls).items():
            written, held = written_name(cls, name), value.value if isinstance(value, Enum) else value
            if name not in changed and (written in own or name[0] != "_"):  # others are Python's machinery
                self._add_read((cls.__module__, (cls.__qualname__, name)), held, written, bindings)

    def add_reads(self, function: FunctionType, uses: Uses) -> None:
        """What a function reads, and what it changes."""
        home, names = home_of(function), function.__globals__
        self._pending.append((home, names, uses))
        for chain in self._trees.changed_by(function):
            if chain[0] in names and chain[0] not in function.__code__.co_varnames:
                self._changed.add(_locate(home, names, chain)[0])

    def settle(self) -> None:
        """Follow everything that is pending, then hash what counts; hashing may meet more code."""
        done: set[Place] = set()
        while self._pending or self._read.keys() - done:
            while self._pending:
                self._follow(*self._pending.pop())
            for place in sorted(self._read.keys() - done):
                done.add(place)
                read = self._read[place]
                if not self._is_changed(place) and self._counts(place, read):
                    self.values[self._label(place)] = self._hash_value(read.value)
        for place in filter(self._is_changed, done):
            self.values.pop(self._label(place), None)

    def _follow(self, home: str, names: dict[str, Any], uses: Uses) -> None:
        for chain in uses.chains:
            self._add_global(home, names, chain)
        for name, may_be_attribute in uses.imports:
            module, _, last = name.rpartition(".")
            if may_be_attribute and isinstance(sys.modules.get(module), ModuleType):
                self._add_global(module, vars(sys.modules[module]), (last,))

    def _add_global(self, home: str, names: dict[str, Any], chain: Chain) -> None:
        (home, path), found = _locate(home, names, chain)
        if not found or path[0].startswith("__") or not self._is_in_file(home):
            return
        value, depth = found[0], 1
        while depth < len(path) and _is_record(value) and path[depth] in vars(value):
            value, depth = vars(value)[path[depth]], depth + 1
        self._follow_value(value)
        if depth > 1:
            name, bindings = path[0], self._trees.bindings(home)
            self._read[home, path[:depth]] = _Read(value, name, bindings)
        else:
            origin, name = self._trees.origin(home, path[0])
            if self._is_in_file(origin):
                self._add_read((home, path[:1]), value, name, self._trees.bindings(origin))

    def _add_read(self, place: Place, value: object, name: str, bindings: Bindings) -> None:
        if isinstance(value, ModuleType) or is_fixed(value, bindings.get(name, []), self._hash_value):
            return
        self._follow_value(value)
        self._read[place] = _Read(value, name, bindings)

    def _add_defaults(self, function: FunctionType) -> None:
        """Defaults are worked out once, where the `def` is run."""
        if "<" in function.__code__.co_qualname:
            return  # they count already
        home, changed = home_of(function), self._trees.changed_by(function)
        for name, value, written in defaults_of(function, self._trees.node(function)):
            if (name,) not in changed:
                argument = f"{function.__code__.co_qualname} default"
                bindings = self._trees.bindings(home) | {argument: [written]}
                self._add_read((home, (argument, name)), value, argument, bindings)

    def _follow_value(self, value: Any, depth: int = 0) -> None:
        """Code that a value stands for is followed for what it reads in turn."""
        while isinstance(value, functools.partial):
            value = value.func
        if (inner := _wrapped(value)) is not None:
            self._follow_value(inner, depth + 1)
        if isinstance(value, FunctionType):
            if id(value) not in self._followed and self._walk.is_own(home_of(value)):
                for part in self._definitions.function(value)[1].values():
                    self._follow_value(part, depth + 1)
        elif items := items_of(value):
            for item in items[:_MAX_ITEMS] if depth < 2 else ():
                self._follow_value(item, depth + 1)
        else:
            cls = value if isinstance(value, type) else type(value)
            if self._walk.is_own(str(cls.__module__)):
                self._definitions.cls(cls)

    def _counts(self, place: Place, read: _Read) -> bool:
        if is_of_one_process(read.bindings, read.name):
            return False
        if is_data(read.value, self._is_steady):
            return not (has_code(read.value) and self._trees.is_changed_in(*place))  # a registry
        # Loggers, locks and files are Python's own: nobody expects them to count.
        kind = type(read.value)
        if kind.__module__.partition(".")[0] not in sys.stdlib_module_names and not has_code(read.value):
            told = f"{self._label(place)} ({kind.__qualname__}) holds more than plain data: it is not compared"
            self._definitions.notes.add(told)
        return False

    def _is_steady(self, value: object) -> bool:
        """Whether a function leaves what it closes over as it is, and an object what it holds."""
        if isinstance(value, FunctionType):
            names = {chain[0] for chain in self._trees.changed_by(value)}
            return not names & set(value.__code__.co_freevars)
        own = [base for base in type(value).__mro__ if self._walk.is_own(base.__module__)]
        return not any(map(self._trees.changed_of_self, own)) if own else is_dataclass(value)

    def _is_changed(self, place: Place) -> bool:
        """Whether the code itself changes this, a part of it, or what it is a part of."""
        home, path = place
        return any(
            other == home and all(a == b for a, b in zip(path, chain, strict=False))
            for other, chain in self._changed
        )

    def _is_in_file(self, home: str) -> bool:
        return self._walk.is_own(home) and self._trees.has_source(home)

    def _label(self, place: Place) -> str:
        return f"global {self._walk.name_of(place[0])}.{'.'.join(place[1])}"

    def _is_new(self, value: object) -> bool:
        if id(value) in self._followed:
            return False
        self._followed[id(value)] = value
        return True


def _locate(home: str, names: dict[str, Any], chain: Chain) -> tuple[Place, list[Any]]:
    """`a.b.c` in: the module that holds it, the rest of the chain, and the value of the first name of that."""
    while chain[0] in names:
        value = names[chain[0]]
        if not isinstance(value, ModuleType) or len(chain) == 1:
            return (home, chain), [value]
        home, names, chain = value.__name__, vars(value), chain[1:]
    return (home, chain), []


def _wrapped(value: object) -> object:
    """What `functools.wraps` or lru_cache stand around; never by an object's own `__getattr__`."""
    return None if isinstance(value, type) else getattr(value, "__dict__", {}).get("__wrapped__")


def _is_record(value: object) -> bool:
    """Objects that do nothing but hold attributes."""
    is_known = isinstance(value, Namespace | SimpleNamespace) or is_dataclass(type(value))
    return is_known and hasattr(value, "__dict__")
