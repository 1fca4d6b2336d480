"""Trees: what the source of each module says of its names and functions, worked out once a module."""

from __future__ import annotations

import ast
import sys
from importlib.util import resolve_name
from types import FunctionType

from flatout.store.code.hash import first_line
from flatout.store.code.loose import functions_in
from flatout.store.code.scope import Binding, Chain, Imported, bindings_in, changed_by, stars_in
from flatout.store.code.walk import CodeWalk

Bindings = dict[str, list[Binding]]

_BUILDING = ("__init__", "__new__", "__post_init__", "__setstate__")


class Trees:
    """Answers for the modules that `walk` has followed; one without source says nothing."""

    def __init__(self, walk: CodeWalk) -> None:
        self._walk = walk
        self._bindings: dict[str, Bindings] = {}
        self._functions: dict[str, dict[tuple[str, int], ast.AST]] = {}

    def has_source(self, home: str) -> bool:
        return self._walk.tree_of(home) is not None

    def bindings(self, home: str) -> Bindings:
        """A module in, what binds each of its names out."""
        if home not in self._bindings:
            tree = self._walk.tree_of(home)
            self._bindings[home] = {} if tree is None else bindings_in(tree)
        return self._bindings[home]

    def node(self, function: FunctionType) -> ast.AST | None:
        """The source of a function; of two lambdas on one line the last."""
        return self._nodes(home_of(function)).get((function.__code__.co_name, function.__code__.co_firstlineno))

    def changed_by(self, function: FunctionType) -> set[Chain]:
        """What a function changes outside of itself, as it is named there."""
        node = self.node(function)
        return set() if node is None else changed_by(node)

    def is_changed_in(self, home: str, path: Chain) -> bool:
        """Whether any function of a module changes this global."""
        return any(path in changed_by(node) for node in self._nodes(home).values())

    def changed_of_self(self, cls: type) -> set[str]:
        """The attributes that a class's methods change, apart from those methods that build an object."""
        found: set[str] = set()
        for function in functions_in(cls):
            if function.__name__ not in _BUILDING:
                owner, chains = function.__code__.co_varnames[:1], self.changed_by(function)
                found |= {chain[1] if len(chain) > 1 else "" for chain in chains if chain[:1] == owner}
        return found

    def origin(self, home: str, name: str) -> tuple[str, str]:
        """The module that a global comes from by way of imports, and its name there."""
        seen: set[tuple[str, str]] = set()
        while (home, name) not in seen and self.has_source(home):
            seen.add((home, name))
            found = self.bindings(home).get(name, [])
            if not found:
                home = self._star(home, name)
            elif len(found) == 1 and isinstance(found[0], Imported) and found[0].name is not None:
                home, name = _absolute(home, found[0].module), found[0].name
        return home, name

    def _star(self, home: str, name: str) -> str:
        tree = self._walk.tree_of(home)
        modules = [] if tree is None else [_absolute(home, module) for module in stars_in(tree)]
        return next((m for m in modules if name in getattr(sys.modules.get(m), "__dict__", {})), home)

    def _nodes(self, home: str) -> dict[tuple[str, int], ast.AST]:
        if home not in self._functions:
            tree = self._walk.tree_of(home)
            self._functions[home] = {} if tree is None else _by_place(tree)
        return self._functions[home]


def home_of(function: FunctionType) -> str:
    """The module whose globals a function reads; `functools.wraps` gives it another name."""
    return str(function.__globals__.get("__name__") or function.__module__)


def _by_place(tree: ast.AST) -> dict[tuple[str, int], ast.AST]:
    found: dict[tuple[str, int], ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name, first_line(node)] = node
        elif isinstance(node, ast.Lambda):
            found["<lambda>", node.lineno] = node
    return found


def _absolute(home: str, name: str) -> str:
    try:
        return resolve_name(name, getattr(sys.modules.get(home), "__package__", None))
    except (ImportError, ValueError):
        return name
