"""Which definition of a class made it, and which of its functions were put in from elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from types import FunctionType

from flatout.store.code.hash import first_line
from flatout.store.code.loose import function_node, members_in
from flatout.store.code.scope import Binding, bindings_in

_PLAIN_DECORATORS = {"property", "staticmethod", "classmethod", "setter", "getter", "deleter"}
"""These keep the function that they are put on; others may put another in its place."""


def definition_of(
    cls: type, nodes: Sequence[ast.ClassDef], is_own: Callable[[str], bool]
) -> tuple[ast.ClassDef, dict[str, FunctionType]]:
    """A class and the definitions of its name in; the one that made it, and the functions set on it since, out.

    `is_own` says of a module whether it is the user's: libraries may add to a class what they like.
    """
    strangers = [_strangers(cls, node, is_own) for node in nodes]
    fewest = min(map(len, strangers))
    place = max(place for place, found in enumerate(strangers) if len(found) == fewest)
    return nodes[place], strangers[place]


def is_made_by(function: FunctionType, node: ast.AST) -> bool:
    """Whether a function came from this `def`; where a decorator hides its code, it is taken to have."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    code = _innermost(function).__code__
    return (code.co_name, code.co_firstlineno) == (node.name, first_line(node)) or _is_replaced(node)


def written_name(cls: type, name: str) -> str:
    """The name of a member as its definition has it: Python stores `__k` of a class C as `_C__k`."""
    private = f"_{cls.__name__.lstrip('_')}__"
    return f"__{name.removeprefix(private)}" if name.startswith(private) else name


def _strangers(cls: type, node: ast.ClassDef, is_own: Callable[[str], bool]) -> dict[str, FunctionType]:
    bindings = bindings_in(node)
    found: dict[str, FunctionType] = {}
    for name, function in members_in(cls):
        written = written_name(cls, name)
        if not _stands_in(bindings.get(written, []), function, cls, is_own) and written[:10] != "__annotate":
            found[name] = function
    return found


def _stands_in(
    bindings: list[Binding], function: FunctionType, cls: type, is_own: Callable[[str], bool]
) -> bool:
    if not bindings:
        return _is_generated(function, cls, is_own)
    made = [b for b in bindings if isinstance(b, ast.FunctionDef | ast.AsyncFunctionDef)]
    if len(made) < len(bindings):
        return True  # `__call__ = shared`: the definition says so itself
    return any(is_made_by(function, node) for node in made)


def _is_generated(function: FunctionType, cls: type, is_own: Callable[[str], bool]) -> bool:
    """Written by a class decorator (dataclass, attrs, total_ordering), not by the user."""
    home, file_name = str(function.__globals__.get("__name__")), function.__code__.co_filename
    if home != cls.__module__ or not file_name.startswith("<"):
        return not is_own(home)
    return file_name.startswith("<attrs ") or function_node(function.__code__) is None


def _is_replaced(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = (getattr(d, "attr", None) or getattr(d, "id", None) for d in node.decorator_list)
    return any(name not in _PLAIN_DECORATORS for name in names)


def _innermost(function: FunctionType) -> FunctionType:
    while isinstance(inner := getattr(function, "__wrapped__", None), FunctionType):
        function = inner
    return function
