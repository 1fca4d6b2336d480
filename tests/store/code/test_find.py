"""Modules are found, labelled and told apart without running them."""

from __future__ import annotations

import py_compile
import sys
import zipfile
from pathlib import Path

import pytest

from flatout.store.code.find import ModuleFinder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package, a namespace package and a module, each of which fails when it is run."""
    for path in ("fo_pack/__init__.py", "fo_pack/sub/__init__.py", "fo_pack/sub/leaf.py", "fo_space/one.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("raise RuntimeError('executed')")
    (tmp_path / "fo_single.py").write_text("raise RuntimeError('executed')")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_modules_are_found_and_labelled_without_running_them(project: Path) -> None:
    finder = ModuleFinder()
    chain = finder.chain("fo_pack.sub.leaf")
    labels = [module.label for module in chain]
    assert labels == ["fo_pack/__init__.py", "fo_pack/sub/__init__.py", "fo_pack/sub/leaf.py"]
    assert [m.package for m in chain] == ["fo_pack", "fo_pack.sub", "fo_pack.sub"]
    assert {m.kind for m in chain} == {"project"}
    assert finder.find("fo_single").label == "fo_single.py"
    assert not any(name.startswith("fo_") for name in sys.modules)


def test_namespace_packages_have_no_file_but_submodules(project: Path) -> None:
    space, one = ModuleFinder().chain("fo_space.one")
    assert space.origin is None
    assert one.label == "fo_space/one.py"


def test_attributes_and_unknown_names_end_the_chain(project: Path) -> None:
    finder = ModuleFinder()
    assert [m.name for m in finder.chain("fo_pack.sub.value")] == ["fo_pack", "fo_pack.sub"]
    assert finder.chain("fo_absent.module") == []
    assert finder.find("not-a name") is None


KINDS = {
    "standard": ["os", "sys", "json.decoder", "xml.dom", "flatout.store.files"],
    "installed": ["numpy", "numpy.linalg", "blake3"],
    "project": ["flatout.source.files"],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, found in KINDS.items() for name in found])
def test_kinds_of_modules(name: str, kind: str) -> None:
    assert ModuleFinder().find(name).kind == kind


def test_a_module_of_the_project_wins_over_the_standard_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    (project / "this.py").write_text("x = 1")
    assert ModuleFinder().find("this").kind == "project"


def test_a_module_without_source_gives_the_bytes_without_the_time(project: Path) -> None:
    target = project / "fo_compiled.pyc"
    py_compile.compile(str(project / "fo_single.py"), cfile=str(target))
    found = ModuleFinder().find("fo_compiled")
    assert not found.has_source
    assert found.read() == target.read_bytes()[16:]


def test_a_module_in_a_zip_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        archive.writestr("fo_zipped.py", "x = 1")
    monkeypatch.syspath_prepend(tmp_path / "lib.zip")
    found = ModuleFinder().find("fo_zipped")
    assert found.kind == "project"
    assert found.read() == b"x = 1"
