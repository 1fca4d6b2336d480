"""From one module to every file and distribution behind it."""

from __future__ import annotations

import importlib.metadata
import py_compile
from pathlib import Path

import pytest

import flatout.store.code.walk as walk_module
from flatout.store.code.walk import ABSENT, CodeWalk


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def walk(root: Path, **files: str) -> CodeWalk:
    """Writes files (`a__b` for a/b.py) and follows `fo_start`."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = CodeWalk()
    assert found.add_module("fo_start")
    return found


def test_submodules_by_from_star_and_in_functions(root: Path) -> None:
    (root / "fo_pack").mkdir()
    (root / "fo_pack/__init__.py").write_text("__all__ = ['one', 'value']\nvalue = 1")
    found = walk(
        root,
        fo_start="from fo_pack import *\nfrom fo_pack import two, value\ndef f():\n    import fo_pack.three",
        fo_pack__one="",
        fo_pack__two="from .inner.four import x",
        fo_pack__three="",
        fo_pack__unused="",
        fo_pack__inner__four="from ..one import x",
    )
    assert sorted(found.files) == [
        "fo_pack/__init__.py",
        "fo_pack/inner/four.py",
        "fo_pack/one.py",
        "fo_pack/three.py",
        "fo_pack/two.py",
        "fo_start.py",
    ]


def test_circles_end_and_broken_files_count(root: Path) -> None:
    found = walk(root, fo_start="import fo_other", fo_other="import fo_start, fo_broken", fo_broken="def (")
    assert sorted(found.files) == ["fo_broken.py", "fo_other.py", "fo_start.py"]


def test_a_parent_package_counts_because_an_import_runs_it(root: Path) -> None:
    (root / "fo_pack").mkdir()
    (root / "fo_pack/__init__.py").write_text("from fo_start import x")
    walk(root, fo_start="", fo_pack__leaf="")
    found = CodeWalk()
    assert found.add_module("fo_pack.leaf")
    assert sorted(found.files) == ["fo_pack/__init__.py", "fo_pack/leaf.py", "fo_start.py"]


def test_a_compiled_module_counts_by_its_bytes(root: Path) -> None:
    (root / "source.txt").write_text("x = 1")
    py_compile.compile(str(root / "source.txt"), cfile=str(root / "fo_built.pyc"))
    first = walk(root, fo_start="import fo_built").files
    (root / "source.txt").write_text("x = 2")
    py_compile.compile(str(root / "source.txt"), cfile=str(root / "fo_built.pyc"))
    second = walk(root, fo_start="import fo_built").files
    assert first["fo_built.pyc"] != second["fo_built.pyc"]
    assert first["fo_start.py"] == second["fo_start.py"]


def test_a_module_in_site_packages_without_a_distribution_counts_by_its_source(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = root / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "fo_dropped.py").write_text("x = 1")
    monkeypatch.syspath_prepend(site)
    assert "fo_dropped.py" in walk(root, fo_start="import fo_dropped").files


def test_a_distribution_is_found_by_its_module_name(root: Path) -> None:
    found = walk(root, fo_start="import yaml, PIL.Image\nfrom google_crc32c import value")
    names = {"PyYAML", "pillow", "google-crc32c"}
    assert found.distributions == {name: importlib.metadata.version(name) for name in names}


def test_one_namespace_of_several_distributions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = root / "lib" / "site-packages"
    for name in ("one", "two"):
        info = site / f"fo_{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fo-{name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"fo_shared/{name}/__init__.py,,\n")
        (site / "fo_shared" / name).mkdir(parents=True)
        (site / "fo_shared" / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(site)
    walk_module._installed_names.cache_clear()
    found = walk(root, fo_start="from fo_shared import one")
    walk_module._installed_names.cache_clear()
    assert found.distributions == {"fo-one": "1.0"}
    assert list(found.files) == ["fo_start.py"]


def test_a_library_installed_later_is_found(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert walk(root, fo_start="import fo_late").distributions == {"fo_late": ABSENT}
    site = root / "lib" / "site-packages"
    (site / "fo_late-2.0+cu130.dist-info").mkdir(parents=True)
    metadata = "Metadata-Version: 2.1\nName: fo-late\nVersion: 2.0+cu130\n"
    (site / "fo_late-2.0+cu130.dist-info" / "METADATA").write_text(metadata)
    (site / "fo_late-2.0+cu130.dist-info" / "RECORD").write_text("fo_late.py,,\n")
    (site / "fo_late.py").write_text("")
    monkeypatch.syspath_prepend(site)
    assert walk(root, fo_start="import fo_late").distributions == {"fo-late": "2.0"}
    walk_module._installed_names.cache_clear()


def test_only_the_parts_of_flatout_that_make_samples_count(root: Path) -> None:
    found = walk(
        root, fo_start="import flatout\nfrom flatout.store.files import x\nfrom flatout.source import files"
    )
    assert "flatout/source/files.py" in found.files
    assert not [label for label in found.files if label.startswith(("flatout/store", "flatout/__init__"))]
