"""Settings written as Python assignments of literals, one a line; parsed, never executed."""

from __future__ import annotations

import ast
from typing import Any

from flatout.config.layer import Path, dotted, put
from flatout.errors import ConfigError


def parse_assignments(text: str, origin: str) -> tuple[dict[str, Any], dict[Path, int]]:
    """`name = literal` lines as nested settings (dots nest), and the line of each.

    Raises:
        ConfigError: anything else stands in the text, or a name is set twice.
    """
    try:
        statements = ast.parse(text).body
    except SyntaxError as error:
        raise ConfigError(f"{origin}, line {error.lineno}: {error.msg}") from error
    values: dict[str, Any] = {}
    lines: dict[Path, int] = {}
    for statement in statements:
        where = f"{origin}, line {statement.lineno}"
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            raise ConfigError(f"{where}: wanted lines such as 'batch_size = 8' and nothing else")
        path: Path = tuple(ast.unparse(statement.targets[0]).split("."))
        if path in lines:
            raise ConfigError(f"{where}: '{dotted(path)}' stands here and in line {lines[path]}; keep one")
        lines[path] = statement.lineno
        try:
            put(values, path, ast.literal_eval(_without_comma(statement.value)))
        except ValueError as error:
            raise ConfigError(f"{where}: '{dotted(path)}' is no plain value; code is not run") from error
    return values, lines


def _without_comma(value: ast.expr) -> ast.expr:
    """The value of `name = 8,`, as settings copied out of a call end; `(8,)` with brackets stays a tuple."""
    if isinstance(value, ast.Tuple) and len(value.elts) == 1 and value.col_offset == value.elts[0].col_offset:
        return value.elts[0]
    return value
