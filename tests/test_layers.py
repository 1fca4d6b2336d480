"""The tables of docs/architecture.md and the code are equal: who imports whom, who owns which library."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "flatout"
PAGE = REPOSITORY / "docs" / "architecture.md"

LOADERS = ("import_module", "require")
"""Functions that import the module whose name they are given."""
NOWHERE = {"torchvision", "torchaudio", "torchcodec"}
UNPICKLERS = {
    f"{module}.{name}"
    for module in ("pickle", "cloudpickle", "marshal", "torch", "joblib", "dill", "shelve")
    for name in ("load", "loads", "Unpickler", "open")
} - {"torch.open"}
WITHOUT_NUMPY = {"config", "cli"}


@dataclass(frozen=True)
class Row:
    """A line of a table."""

    may_import: set[str]
    owns: set[str]


@dataclass(frozen=True)
class File:
    """A source file and where it belongs."""

    path: Path
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(SOURCE).as_posix()

    @property
    def layer(self) -> str:
        """The package, or the shared module's name; empty for flatout/__init__.py."""
        first = self.name.partition("/")[0]
        return "" if first == "__init__.py" else first.removesuffix(".py")

    @cached_property
    def imported(self) -> set[str]:
        """Dotted names: `import a.b` and `from a.b import c` give a.b, the latter a.b.c too."""
        return set().union(*(names_of(node) for node in nodes(self.tree)))

    @cached_property
    def calls(self) -> set[str]:
        return {called(node) for node in self.all_nodes if isinstance(node, ast.Call)}

    @cached_property
    def all_nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))


@pytest.fixture(scope="module")
def files() -> list[File]:
    """Parsed for these tests alone: 700,000 objects that stay would slow every later collection of garbage."""
    return [File(path, ast.parse(path.read_bytes())) for path in sorted(SOURCE.rglob("*.py"))]


def table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page."""
    section = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def layers(heading: str) -> dict[str, Row]:
    return {name.strip("`"): Row(words(may), words(owns)) for name, _, may, owns in table(heading)}


PACKAGES = layers("Packages")
SHARED = layers("Shared modules")
ROWS = PACKAGES | SHARED
EXCEPTIONS = [(name.strip("`"), use) for name, uses, _ in table("Exceptions") for use in words(uses)]


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: what stands under `if TYPE_CHECKING` is for the type checker alone."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from nodes(child)


def names_of(node: ast.AST) -> set[str]:
    """The modules that a node imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        return {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    if isinstance(node, ast.Call) and node.args and called(node).endswith(LOADERS):
        name = node.args[0]
        return {name.value} if isinstance(name, ast.Constant) else set()
    return set()


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def own_layers(file: File) -> set[str]:
    names = (name.split(".") for name in file.imported)
    return {parts[1] for parts in names if parts[0] == "flatout" and len(parts) > 1} & set(ROWS)


def libraries(file: File) -> set[str]:
    tops = {name.partition(".")[0] for name in file.imported}
    return tops - set(sys.stdlib_module_names) - {"flatout", ""}


def allows_pickle(file: File) -> bool:
    keywords = [k for node in file.all_nodes if isinstance(node, ast.Call) for k in node.keywords]
    return any(k.arg == "allow_pickle" and getattr(k.value, "value", True) is not False for k in keywords)


def exceptions(file: File) -> set[str]:
    return {use for name, use in EXCEPTIONS if name == file.name}


def test_every_package_of_the_code_stands_in_the_table(files: list[File]) -> None:
    in_code = {file.layer for file in files if file.layer}
    assert in_code <= set(ROWS)
    assert set(SHARED) <= in_code


def test_imports_point_one_way(files: list[File]) -> None:
    wrong = {}
    for file in files:
        allowed = ROWS[file.layer].may_import if file.layer else {"lazy"}
        shared = set(SHARED) if file.layer in PACKAGES else set()
        wrong[file.name] = own_layers(file) - {file.layer} - allowed - shared
    assert {name: found for name, found in wrong.items() if found} == {}


def test_libraries_are_imported_by_their_owners_only(files: list[File]) -> None:
    wrong = {}
    for file in files:
        owned = ROWS[file.layer].owns if file.layer else set()
        free = {"numpy"} if file.layer in PACKAGES and file.layer not in WITHOUT_NUMPY else set()
        wrong[file.name] = libraries(file) - owned - free - exceptions(file)
    assert {name: found for name, found in wrong.items() if found} == {}


def test_every_library_in_the_tables_is_used(files: list[File]) -> None:
    for layer in {file.layer for file in files if file.layer}:
        used = set().union(*(libraries(file) for file in files if file.layer == layer))
        assert ROWS[layer].owns - used == set(), layer


def test_imports_are_absolute(files: list[File]) -> None:
    froms = ((file.name, node) for file in files for node in file.all_nodes)
    assert [name for name, node in froms if isinstance(node, ast.ImportFrom) and node.level] == []


def test_cached_values_take_no_lock(files: list[File]) -> None:
    """Only `flatout.lazy`'s: the lock of functools' own, up to 3.11, can be left held in a forked child."""
    assert [file.name for file in files if "functools.cached_property" in file.calls | file.imported] == []


def test_forbidden_libraries_are_imported_nowhere(files: list[File]) -> None:
    assert [file.name for file in files if libraries(file) & NOWHERE] == []


def test_only_the_command_line_prints(files: list[File]) -> None:
    assert [file.name for file in files if file.layer != "cli" and "print" in file.calls] == []


def test_nothing_unpickles(files: list[File]) -> None:
    wrong = {file.name: (file.calls | file.imported) & UNPICKLERS - exceptions(file) for file in files}
    assert {name: found for name, found in wrong.items() if found} == {}
    assert [file.name for file in files if allows_pickle(file)] == []


@pytest.mark.parametrize(("name", "use"), EXCEPTIONS)
def test_every_exception_is_needed(files: list[File], name: str, use: str) -> None:
    (file,) = [file for file in files if file.name == name]
    assert use in libraries(file) | file.calls


def test_the_table_has_no_circles_and_no_torch_on_the_left() -> None:
    order = list(PACKAGES)
    for package, row in PACKAGES.items():
        assert all(order.index(other) < order.index(package) for other in row.may_import)
    for package in ("config", "source", "store"):
        assert "torch" not in PACKAGES[package].owns
