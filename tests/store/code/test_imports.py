"""Imports are found in every form."""

from __future__ import annotations

import ast

import pytest

from flatout.store.code.imports import exported_names, imports_of


def names(source: str, package: str = "") -> set[str]:
    return {found.name for found in imports_of(ast.parse(source), package)}


@pytest.mark.parametrize(
    ("source", "package", "wanted"),
    [
        ("import a.b as c, d", "", {"a.b", "d"}),
        ("from a.b import c as x, d", "", {"a.b", "a.b.c", "a.b.d"}),
        ("from . import c", "a.b", {"a.b", "a.b.c"}),
        ("from ..x import y", "a.b", {"a.x", "a.x.y"}),
        ("from ... import y", "a.b", set()),
        ("from . import y", "", set()),
        ("from a import *", "", {"a", "a.*"}),
        ("def f():\n    if x:\n        import a", "", {"a"}),
        ("try:\n    import a\nexcept ImportError:\n    import b", "", {"a", "b"}),
        ("import importlib\nimportlib.import_module('a.b')", "", {"importlib", "a.b"}),
        ("x = import_module('.b', __package__)", "a", {"a.b"}),
        ("__import__('a'); __import__(name); import_module(f'{a}')", "", {"a"}),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", "", {"b"}),
        ("if typing.TYPE_CHECKING:\n    import a", "", set()),
        ("text = 'import a'", "", set()),
    ],
)
def test_every_form_of_import_is_found(source: str, package: str, wanted: set[str]) -> None:
    assert names(source, package) == wanted


def test_names_of_from_imports_may_be_attributes() -> None:
    found = {f.name: f.may_be_attribute for f in imports_of(ast.parse("from a import b"), "")}
    assert found == {"a": False, "a.b": True}


def test_exported_names_are_read() -> None:
    source = "__all__ = ['a', 'b']\n__all__ += ('c',)\n__all__: list[str] = ['d']\nother = ['e']"
    assert exported_names(ast.parse(source)) == ["a", "b", "c", "d"]
