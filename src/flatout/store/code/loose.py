"""Code that stands in no file (notebook, prompt): its source where one is kept, and the names it uses."""

from __future__ import annotations

import ast
import dis
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from flatout.store.code.hash import find_classes, find_code, parse_source


@dataclass(slots=True)
class Uses:
    """What a piece of code takes from outside."""

    globals: set[str] = field(default_factory=set)
    imports: list[tuple[str, bool]] = field(default_factory=list)
    """Dotted names, and whether the name may be an attribute (`from a import b`)."""
    chains: set[tuple[str, ...]] = field(default_factory=set)
    """The globals with the attributes that are read of them: `a.b` as (a, b)."""


def names_used(code: CodeType) -> Uses:
    """The globals and imports of a code object and of the functions inside it, read from its instructions."""
    uses = Uses()
    module = ""
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "EXTENDED_ARG":
            continue
        if chain and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, name)
            continue
        uses.chains |= {chain} - {()}
        chain = ()
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            uses.globals.add(name)
            chain = (name,)
        elif instruction.opname == "IMPORT_NAME":
            module = name
            uses.imports.append((name, False))
        elif instruction.opname == "IMPORT_FROM":
            uses.imports.append((f"{module}.{name}", True))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = names_used(constant)
            uses.globals |= inner.globals
            uses.imports += inner.imports
            uses.chains |= inner.chains
    return uses


def function_node(code: CodeType) -> ast.AST | None:
    """The source of a function as a tree, if the notebook (or Python 3.13's prompt) keeps it."""
    tree = parse_source("".join(linecache.getlines(code.co_filename)))
    return None if tree is None else find_code(tree, code)


def class_nodes(cls: type) -> list[ast.ClassDef]:
    """The definitions of a class's name as trees, found through the file name of its methods."""
    for function in functions_in(cls):
        tree = parse_source("".join(linecache.getlines(function.__code__.co_filename)))
        nodes = [] if tree is None else find_classes(tree, cls.__qualname__)
        if nodes:
            return nodes
    return []


def functions_in(cls: type) -> Iterator[FunctionType]:
    """Every function that a class itself defines, also inside properties, class and static methods."""
    yield from (function for _, function in members_in(cls))


def members_in(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """The same with the name that the class has for each."""
    for name, member in vars(cls).items():
        yield from ((name, inner) for inner in _unwrapped(member) if isinstance(inner, FunctionType))


def values_in(cls: type) -> dict[str, Any]:
    """Class attributes that are no functions and no machinery of Python's."""
    return {
        name: member
        for name, member in vars(cls).items()
        if not name.startswith("__") and not name.startswith("_abc_") and not hasattr(member, "__get__")
    }


def _unwrapped(member: Any) -> tuple[Any, ...]:
    if isinstance(member, property):
        return (member.fget, member.fset, member.fdel)
    for name in ("__func__", "func", "__wrapped__"):
        if not isinstance(member, FunctionType | type) and hasattr(member, name):
            return (getattr(member, name),)
    return (member,)
