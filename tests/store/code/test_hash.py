"""Laws of the code hash: layout, comments and docstrings never count; everything else does."""

from __future__ import annotations

import ast
import io
import json
import random
import textwrap
import tokenize
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.store.code.hash import find_classes, find_code, hash_code, hash_source

STANDARD = [Path(m.__file__) for m in (ast, io, json, random, textwrap, tokenize)]

PROGRAM = """
import numpy as np

SPACING = (1.0, 2.0)

class Window:
    level: int = 40

    def apply(self, x, *, width=400):
        if width > SPACING[0]:
            return np.clip(x, self.level - width, self.level + width)
        return x

def scale(x, factor=2):
    y = [v * factor for v in x]
    return y
"""

# A fixed alphabet: the table of all characters takes hypothesis a second to build.
LETTERS = st.sampled_from("aZ09 \t\"'#:()[]{}\\;é中😀")
COMMENTS = st.text(LETTERS, max_size=30).map(lambda text: f"# {text}")
law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def hash_text(source: str) -> str:
    return hash_source(source.encode())


@pytest.mark.parametrize("path", STANDARD, ids=lambda path: path.name)
def test_rewritten_layout_keeps_the_hash(path: Path) -> None:
    source = path.read_bytes()
    assert hash_source(ast.unparse(ast.parse(source)).encode()) == hash_source(source)


@law
@given(st.data())
def test_comments_and_blank_lines_keep_the_hash(data: st.DataObject) -> None:
    lines = []
    for line in PROGRAM.splitlines():
        if data.draw(st.booleans()):
            indent = " " * data.draw(st.integers(0, 8))
            lines.append(indent + data.draw(COMMENTS))
        lines.append(f"{line}  {data.draw(COMMENTS)}" if data.draw(st.booleans()) else line)
        lines += [""] * data.draw(st.integers(0, 2))
    assert hash_text("\n".join(lines)) == hash_text(PROGRAM)


@law
@given(st.text(LETTERS, max_size=40), st.integers(0, 3))
def test_docstrings_keep_the_hash(text: str, place: int) -> None:
    tree = ast.parse(PROGRAM)
    homes = [tree, tree.body[2], tree.body[2].body[1], tree.body[3]]
    homes[place].body.insert(0, ast.Expr(ast.Constant(text)))
    assert hash_text(ast.unparse(ast.fix_missing_locations(tree))) == hash_text(PROGRAM)


def test_a_docstring_is_no_statement() -> None:
    assert hash_text('def f():\n    "doc"') == hash_text("def f():\n    pass")
    assert hash_text('"""doc"""') == hash_text("")


@law
@given(st.integers() | st.floats() | st.text(LETTERS) | st.binary() | st.booleans())
def test_a_changed_constant_changes_the_hash(value: object) -> None:
    changed = PROGRAM.replace("level: int = 40", f"level: int = {value!r}")
    assert (hash_text(changed) == hash_text(PROGRAM)) == (type(value) is int and value == 40)


@law
@given(st.sampled_from([0, 1, 0.0, 1.0, -0.0, True, False, "1", b"1", "", None, 1j, "a", "b"]), st.data())
def test_constants_of_different_kinds_differ(value: object, data: st.DataObject) -> None:
    other = data.draw(st.sampled_from([0, 1, 0.0, 1.0, True, False, "1", b"1", "", None, 1j, "a", "b"]))
    assert (hash_text(f"x = {value!r}") == hash_text(f"x = {other!r}")) == (repr(value) == repr(other))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("factor=2", "factor=3"),
        ("factor=2", "factor"),
        ("width > ", "width >= "),
        ("def scale", "async def scale"),
        ("numpy as np", "scipy as np"),
        ("v * factor for v in x]", "v * factor for v in x if v]"),
        ("    return y", "        return y"),
        ("*, width=400", "width=400"),
        ("SPACING[0]", "SPACING[1]"),
    ],
)
def test_a_changed_statement_changes_the_hash(old: str, new: str) -> None:
    changed = PROGRAM.replace(old, new)
    if new.startswith("        return"):
        changed = PROGRAM.replace("    y = [v", "    if x:\n        y = [v").replace(old, new)
    assert hash_text(changed) != hash_text(PROGRAM)


def test_long_sums_and_huge_numbers_have_a_hash() -> None:
    assert hash_text("x = " + " + ".join(["1"] * 900)) != hash_text("x = " + " + ".join(["1"] * 901))
    assert hash_text(f"x = 0x{'f' * 5000}") != hash_text(f"x = 0x{'e' * 5000}")


def test_text_that_is_not_python_counts_as_it_stands() -> None:
    assert hash_text("def (") != hash_text("def ((")


def test_encoding_lines_are_read() -> None:
    latin = b"# -*- coding: latin-1 -*-\nx = '\xe9'\n"
    assert hash_source(latin) == hash_text("x = 'é'")


def test_two_lambdas_of_one_line_are_told_apart() -> None:
    source = "pair = (lambda x: x + 1, lambda x: (lambda y: x * y))"
    scope: dict[str, object] = {}
    exec(compile(source, "cell", "exec"), scope)
    tree = ast.parse(source)
    first, second = scope["pair"]
    nodes = [find_code(tree, f.__code__) for f in (first, second, second(1))]
    assert [ast.unparse(n) for n in nodes] == [
        "lambda x: x + 1",
        "lambda x: lambda y: x * y",
        "lambda y: x * y",
    ]


def test_a_decorated_function_and_a_nested_class_are_found() -> None:
    source = "class A:\n    class B:\n        @staticmethod\n        def f(): return 1\n"
    scope: dict[str, object] = {}
    exec(compile(source, "cell", "exec"), scope)
    tree = ast.parse(source)
    assert [node.name for node in find_classes(tree, "A.B")] == ["B"]
    assert find_classes(tree, "A.C") == []
    assert find_code(tree, scope["A"].B.f.__code__).name == "f"


def test_bytecode_hash_sees_constants_names_and_inner_functions() -> None:
    def code_of(source: str) -> str:
        return hash_code(compile(source, "cell", "exec"))

    base = code_of("def f(x):\n    return [g(x) for y in {1, 2}]")
    assert base == code_of("\n\ndef f(x):\n    return [g(x) for y in {1, 2}]  # moved")
    assert base != code_of("def f(x):\n    return [g(x) for y in {1, 3}]")
    assert base != code_of("def f(x):\n    return [h(x) for y in {1, 2}]")
