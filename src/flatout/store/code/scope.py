"""What a source tree says of its names: what binds them, what changes them, which differ in every process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Chain = tuple[str, ...]
"""`a.b.c` as its names."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A name that an import binds."""

    module: str
    """As it is written: relative names keep their dots."""
    name: str | None
    """Its name in that module; None: the module itself."""


Binding = ast.AST | Imported
"""What a name is bound to: an expression (of a loop, what it runs over), a `def` or `class`, an import."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "fill", "insert", "move_to_end"}
    | {"pop", "popitem", "popleft", "put", "remove", "resize", "reverse", "rotate", "setdefault", "sort"}
    | {"subtract", "update"}
)
"""Methods that change a container or an array in place."""
_OF_ONE_PROCESS = frozenset(
    {"__file__", "cwd", "getcwd", "getpid", "gettempdir", "mkdtemp", "mkstemp", "monotonic", "now"}
    | {"perf_counter", "time_ns", "today", "utcnow", "uuid1", "uuid4"}
)
"""Clocks, folders and ids: another value in each run of one program, or in each folder it is moved to."""


def bindings_in(scope: ast.AST) -> dict[str, list[Binding]]:
    """A module or class in, what binds each name of its own scope out."""
    found: dict[str, list[Binding]] = {}
    for node in _own_nodes(scope):
        for name, binding in _bound_by(node):
            found.setdefault(name, []).append(binding)
    return found


def stars_in(scope: ast.AST) -> list[str]:
    """The modules of `from module import *`, as written."""
    imports = [n for n in _own_nodes(scope) if isinstance(n, ast.ImportFrom) and n.names[0].name == "*"]
    return [_written(node) for node in imports]


def changed_by(function: ast.AST) -> set[Chain]:
    """What a function's code assigns to outside of itself or changes in place, as it is named there."""
    found: set[Chain] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            found |= {(name,) for name in node.names}
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.add(_chain(node))
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found.add(_chain(node.value))
        elif isinstance(node, ast.Call):
            found |= _changed_by_call(node)
    return found - {()}


def is_of_one_process(bindings: dict[str, list[Binding]], name: str) -> bool:
    """Whether a name's value follows from a clock, a folder or an id, also by way of other names."""
    seen, pending = {name}, [name]
    while pending:
        for binding in bindings.get(pending.pop(), []):
            names = set() if isinstance(binding, (Imported, *_SCOPES)) else _names_in(binding)
            if names & _OF_ONE_PROCESS:
                return True
            pending += names - seen
            seen |= names
    return False


def _bound_by(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        yield node.name, node
    elif isinstance(node, ast.Import):
        yield from ((a.asname or a.name.split(".")[0], Imported(a.name, None)) for a in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from ((a.asname or a.name, Imported(_written(node), a.name)) for a in node.names)
    elif isinstance(node, ast.Assign):
        yield from (pair for target in node.targets for pair in _targets(target, node.value))
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _targets(node.target, node.iter)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _targets(node.optional_vars, node.context_expr)


def _targets(target: ast.AST, value: ast.AST) -> Iterator[tuple[str, Binding]]:
    """`a, b = 1, 2` binds a to 1; of a value that cannot be told apart each name gets the whole."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, value)
    elif isinstance(target, ast.Tuple | ast.List):
        parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
        is_paired = len(parts) == len(target.elts)
        for place, inner in enumerate(target.elts):
            yield from _targets(inner, parts[place] if is_paired else value)


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node that is not inside a further function, class or comprehension."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending.extend(ast.iter_child_nodes(node))


def _changed_by_call(node: ast.Call) -> set[Chain]:
    found = {_chain(k.value) for k in node.keywords if k.arg == "out"}  # numpy writes into it
    if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        found.add(_chain(node.func.value))
    return found


def _chain(node: ast.AST) -> Chain:
    """`a.b[0].c` in, (a, b) out: what of it has a name; empty where it starts with something else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        names = [node.attr, *names] if isinstance(node, ast.Attribute) else []
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else ()


def _names_in(node: ast.AST) -> set[str]:
    found = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    is_time = any(isinstance(n, ast.Attribute) and _chain(n) == ("time", "time") for n in ast.walk(node))
    return found | {"time_ns"} if is_time else found


def _written(node: ast.ImportFrom) -> str:
    return "." * node.level + (node.module or "")
