"""Every import that a module's source holds, in whatever form it is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import resolve_name

_IMPORT_CALLS = {"import_module", "__import__"}


@dataclass(frozen=True, slots=True)
class Import:
    """A dotted name that some code imports."""

    name: str
    may_be_attribute: bool = False
    """`from a import b`: the name a.b is a module only if such a file exists."""


def imports_of(tree: ast.AST, package: str) -> Iterator[Import]:
    """Every import in a tree, in functions too, `if TYPE_CHECKING` left out; relative to `package`."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_import(node, package)
        elif isinstance(node, ast.Call):
            yield from _import_call(node, package)
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def exported_names(tree: ast.Module) -> list[str]:
    """The strings of a module's `__all__`: what `from package import *` imports."""
    found: list[str] = []
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            found += [
                n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
    return found


def _from_import(node: ast.ImportFrom, package: str) -> Iterator[Import]:
    base = _absolute("." * node.level + (node.module or ""), package)
    if base is not None:
        yield Import(base)
        yield from (Import(f"{base}.{alias.name}", may_be_attribute=True) for alias in node.names)


def _import_call(node: ast.Call, package: str) -> Iterator[Import]:
    """`import_module("a.b")` with a literal name; other names cannot be known before running."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    first = node.args[0] if node.args else None
    if called in _IMPORT_CALLS and isinstance(first, ast.Constant) and isinstance(first.value, str):
        name = _absolute(first.value, package)
        if name is not None:
            yield Import(name)


def _absolute(name: str, package: str) -> str | None:
    if not name.startswith("."):
        return name or None
    try:
        return resolve_name(name, package)
    except ImportError:
        return None  # would fail at run time too: a relative import outside a package


def _is_type_checking(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))
