"""Hash of what Python code does: comments, layout and docstrings never change it, anything else does.

The tree is written down by our own function, not `ast.dump`, whose text differs between Python releases.
Code without source (typed into a plain prompt) is hashed by its bytecode: there docstrings and the Python
release do count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

from blake3 import blake3

HASH_BYTES = 16
"""Length of the hash of one file or value; the fingerprint over all of them is longer."""

_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
"""Parts of a tree that follow from the rest (load or store) or have no effect (u"" prefixes)."""


def hash_bytes(data: bytes) -> str:
    """Any bytes in, 32 hexadecimal digits out."""
    return blake3(data).hexdigest(HASH_BYTES)


def parse_source(source: bytes | str) -> ast.Module | None:
    """The tree of a module's source (bytes: its encoding line holds), None if it is not valid Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def hash_source(source: bytes) -> str:
    """A module's source in, its hash out; text that is not Python is hashed as it stands."""
    tree = parse_source(source)
    return hash_bytes(source) if tree is None else hash_tree(tree)


def hash_tree(tree: ast.AST) -> str:
    """A tree in, the same hash for every layout of the same code out."""
    parts: list[str] = []
    pending: list[object] = [tree]
    # A stack instead of recursion: a sum of 1,000 terms is a tree 1,000 levels deep.
    while pending:
        item = pending.pop()
        if isinstance(item, ast.AST):
            parts.append(f"({type(item).__name__}")
            pending.append(")")
            pending.extend(reversed(list(_children(item))))
        elif isinstance(item, str):
            parts.append(item)
    return hash_bytes("".join(parts).encode())


def find_code(tree: ast.AST, code: CodeType) -> ast.AST | None:
    """The `def` or `lambda` that a code object was compiled from; None if `tree` does not hold it."""
    if code.co_name == "<lambda>":
        return _find_lambda(tree, code)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (node.name, first_line(node)) == (code.co_name, code.co_firstlineno):
            return node
    return None


def first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line that a function's code object starts at: that of its first decorator."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def find_classes(tree: ast.AST, qualname: str) -> list[ast.ClassDef]:
    """The classes of this qualified name in the order of the file: there may be one in each branch."""
    return [node for node in find_named(tree, qualname) if isinstance(node, ast.ClassDef)]


def find_named(tree: ast.AST, qualname: str) -> list[ast.AST]:
    """The `def` and `class` statements of this qualified name, in the order of the file."""
    found: list[ast.AST] = [tree]
    for part in qualname.replace("<locals>.", "").split("."):
        inside = (node for outer in found for node in _own_scope(outer))
        found = [node for node in inside if isinstance(node, _DEFINITIONS) and node.name == part]
    return found


def hash_code(code: CodeType) -> str:
    """Hash of a code object whose source is not at hand: instructions, constants and names."""
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [_constant(c) for c in code.co_consts]
    return hash_bytes(repr((shape, names, constants, code.co_code)).encode())


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _children(node: ast.AST) -> Iterator[object]:
    """What stands inside a node as text and nodes, in the order of the grammar; empty parts are left out."""
    if isinstance(node, ast.Constant):
        yield _constant(node.value)
        return
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list) and name == "body":
            value = _statements(value)
        if value is None or value == [] or name in _IGNORED_FIELDS:
            continue
        yield f"{name}="
        if isinstance(value, list):
            yield from ("[", *map(_item, value), "]")
        else:
            yield _item(value)


def _item(value: object) -> object:
    return value if isinstance(value, ast.AST) else f"{value!a};"


def _statements(body: list[ast.AST]) -> list[ast.AST]:
    """A block without docstrings: a string that stands alone does nothing, wherever it stands."""
    kept = [s for s in body if not (isinstance(s, ast.Expr) and _is_string(s.value))]
    return kept or [ast.Pass()]


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _constant(value: object) -> str:
    """A constant as text: escaped, so that no Unicode table matters; sets in sorted order."""
    if type(value) is int:
        return hex(value)  # repr() of an int refuses more than 4,300 digits
    if isinstance(value, CodeType):
        return hash_code(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_constant, value)))}}}"
    return ascii(value)


def _own_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node that is not inside a further function or class."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _DEFINITIONS):
            yield from _own_scope(child)


def _find_lambda(tree: ast.AST, code: CodeType) -> ast.Lambda | None:
    """The innermost lambda of that line whose body holds all of the code's instructions."""
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    found: list[ast.Lambda] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            start = (node.body.lineno, node.body.col_offset)
            end = (node.body.end_lineno or 0, node.body.end_col_offset or 0)
            if all(start <= place < end for place in places):
                found.append(node)
    return found[-1] if found else None  # ast.walk goes outside in
