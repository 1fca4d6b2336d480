"""Whether a file says all there is to a value, so that its hash stands for the value too."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from flatout.store.code.members import is_made_by
from flatout.store.code.scope import Binding, Imported


def is_fixed(value: Any, bindings: list[Binding], hash_value: Callable[[object], str]) -> bool:
    """A value and what binds its name in; True: one `def`, `class` or import, or a literal it still equals."""
    if len(bindings) != 1:
        return False  # `if fast: GAIN = 1`, `else: GAIN = 2`
    binding = bindings[0]
    if isinstance(binding, ast.ClassDef):
        return not isinstance(value, type) or value.__name__ == binding.name
    if isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef):
        return not isinstance(value, FunctionType) or (is_made_by(value, binding) and carries_code_only(value))
    if isinstance(binding, ast.Lambda):
        return isinstance(value, FunctionType) and value.__code__.co_firstlineno == binding.lineno
    if isinstance(binding, Imported):
        return True
    return _equals_literal(value, binding, hash_value)


def defaults_of(function: FunctionType, node: ast.AST | None) -> Iterator[tuple[str, object, ast.AST]]:
    """Each default of a `def`: the argument, its value, and how it is written."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    written, values = node.args.defaults, function.__defaults__ or ()
    if written and len(values) == len(written):
        yield from zip(names[-len(written) :], values, written, strict=True)
    given = function.__kwdefaults__ or {}
    for argument, expression in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if expression is not None and argument.arg in given:
            yield argument.arg, given[argument.arg], expression


def carries_code_only(function: FunctionType) -> bool:
    """A decorator's own arguments, as in `@scaled(gain)`, are no part of the file."""
    for cell in function.__closure__ or ():
        try:
            if not isinstance(cell.cell_contents, FunctionType | type):
                return False
        except ValueError:
            continue  # not set yet
    return True


def _equals_literal(value: object, binding: ast.AST, hash_value: Callable[[object], str]) -> bool:
    try:
        literal = ast.literal_eval(binding)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return type(value) is type(literal) and hash_value(literal) == hash_value(value)
