"""Definitions: the code behind a function or class, wherever it stands.

A function or class counts by its module's file and what that imports, and by the values of the globals it reads
that the file alone does not fix (`globals.py`). Where there is no file (a notebook, a prompt), it counts by its
own source, or bytecode where even that is missing, and so does every global it names, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from flatout.store.code.globals import Globals
from flatout.store.code.hash import find_classes, find_code, hash_code, hash_tree
from flatout.store.code.loose import class_nodes, function_node, functions_in, names_used, values_in
from flatout.store.code.members import definition_of
from flatout.store.code.walk import CodeWalk

Parts = dict[str, Any]
"""What an object carries, by a name that a person understands."""

_MAIN = ("__main__", "__mp_main__")


class Definitions:
    """Collects code in `walk`, values of globals in `values` (name -> hash) and remarks in `notes`."""

    def __init__(self, hash_value: Callable[[object], str]) -> None:
        self.walk = CodeWalk()
        self.values: dict[str, str] = {}
        self.notes: set[str] = set()
        self._hash_value = hash_value
        self._globals = Globals(self, self.walk, hash_value)
        self._classes: dict[type, tuple[str, Parts]] = {}
        self._seen: set[object] = set()

    def settle(self) -> None:
        """To be called at the end: the globals that all the code met so far reads count from here on."""
        self._globals.settle()
        self.values |= self._globals.values

    def function(self, function: FunctionType) -> tuple[str, Parts]:
        """A function in, its name and what it carries out: closure variables, defaults made while running."""
        code = function.__code__
        home = str(function.__globals__.get("__name__") or function.__module__)
        in_file = self._function_in_file(home, function)
        parts: Parts = {f"variable {n}": v for n, v in _closure(function).items()}
        if in_file:
            parts |= self._globals.add_function(function)
        else:
            self._loose_function(function)
        if not in_file or "<" in code.co_qualname:  # `<locals>`, `<lambda>`: the file does not fix them
            parts["defaults"] = (function.__defaults__, function.__kwdefaults__)
        if in_file and code.co_name == "<lambda>":
            parts["lambda"] = self._lambda(home, function)
        if (function.__module__, function.__qualname__) != (home, code.co_qualname):
            parts["wrapper"] = f"{self.walk.name_of(home)}:{code.co_qualname}"  # functools.wraps renamed it
        return f"{self.walk.name_of(function.__module__ or home)}:{function.__qualname__}", parts

    def cls(self, cls: type) -> tuple[str, Parts]:
        """A class in, its name and the closure variables of its methods out; its bases' code counts too."""
        if cls not in self._classes:
            self._classes[cls] = (f"{self.walk.name_of(cls.__module__)}:{cls.__qualname__}", {})
            self._classes[cls][1].update(self._class_parts(cls))
        return self._classes[cls]

    def _class_parts(self, cls: type) -> Parts:
        parts: Parts = {}
        for base in cls.__mro__[:-1]:
            if self._class_in_file(base):
                parts |= self._globals.add_class(base)
            else:
                self._loose_class(base)
            if "<locals>" in base.__qualname__:  # only a class made by a function closes over its variables
                found = {n: v for function in functions_in(base) for n, v in _closure(function).items()}
                parts |= {f"variable {n}": v for n, v in found.items() if n != "__class__"}
        return parts

    def _function_in_file(self, home: str, function: FunctionType) -> bool:
        if not self.walk.add_module(home):
            return False
        if home not in _MAIN:
            return True
        tree = self.walk.tree_of(home)  # it may have been typed in after the script ran (python -i)
        return tree is not None and find_code(tree, function.__code__) is not None

    def _class_in_file(self, cls: type) -> bool:
        if not self.walk.add_module(cls.__module__):
            return False
        if cls.__module__ not in _MAIN:
            return True
        tree = self.walk.tree_of(cls.__module__)
        return tree is not None and bool(find_classes(tree, cls.__qualname__))

    def _lambda(self, home: str, function: FunctionType) -> str:
        tree = self.walk.tree_of(home)
        node = find_code(tree, function.__code__) if tree is not None else None
        return hash_tree(node) if node is not None else self._hash_bytecode(function)

    def _loose_function(self, function: FunctionType) -> None:
        if function.__code__ in self._seen:
            return
        self._seen.add(function.__code__)
        node = function_node(function.__code__)
        code_hash = hash_tree(node) if node is not None else self._hash_bytecode(function)
        self._record(function.__module__, function.__code__.co_qualname, code_hash)
        self._follow_globals(function)

    def _loose_class(self, cls: type) -> None:
        if cls in self._seen:
            return
        self._seen.add(cls)
        nodes = class_nodes(cls)
        node, strangers = definition_of(cls, nodes, self.walk.is_own) if nodes else (None, {})
        if node is not None:
            self._record(cls.__module__, cls.__qualname__, hash_tree(node))
        for name, function in strangers.items():
            self.values[f"{cls.__qualname__}.{name}"] = self._hash_value(function)
        for function in functions_in(cls):
            if node is None:
                self._record(cls.__module__, function.__code__.co_qualname, self._hash_bytecode(function))
            self._follow_globals(function)
        for name, value in values_in(cls).items():
            self.values[f"{cls.__qualname__}.{name}"] = self._hash_value(value)

    def _follow_globals(self, function: FunctionType) -> None:
        """Whatever the code names: modules are followed as imports, anything else counts by its value."""
        uses = names_used(function.__code__)
        for name, may_be_attribute in uses.imports:
            self.walk.add_import(name, may_be_attribute)
        self._globals.add_reads(function, uses)
        for name in sorted(uses.globals & function.__globals__.keys()):
            value = function.__globals__[name]
            if isinstance(value, ModuleType):
                self.walk.add_import(value.__name__)
            elif f"global {name}" not in self.values:
                self.values[f"global {name}"] = ""  # under way: two functions may name each other
                self.values[f"global {name}"] = self._hash_value(value)

    def _hash_bytecode(self, function: FunctionType) -> str:
        self.notes.add(
            f"no source of {function.__qualname__}: its bytecode is compared, which another Python may change"
        )
        return hash_code(function.__code__)

    def _record(self, home: str, qualname: str, code_hash: str) -> None:
        """Two definitions of one name (a cell run twice, two lambdas) are both kept."""
        label = f"{'__main__' if home in _MAIN else home}:{qualname}"
        number, free = 2, label
        while self.walk.files.get(free, code_hash) != code_hash:
            free, number = f"{label} ({number})", number + 1
        self.walk.files[free] = code_hash


def _closure(function: FunctionType) -> Parts:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: _content(cell) for name, cell in cells}


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return "not set yet"
