"""A store has a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.errors import ConfigError
from flatout.store.place import is_source_folder, refuse_source_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "store").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "source")
    (tmp_path / "m.csv").touch()
    return tmp_path / "source"


@pytest.mark.parametrize("name", ["source", "link", "source/../source"])
def test_the_folder_of_the_sources_is_refused_however_it_is_named(source: Path, name: str) -> None:
    for manifest in (str(source), {"train": str(source.parent), "val": str(source)}):
        with pytest.raises(ConfigError, match=r"holds the source files.*such as \w+_store"):
            refuse_source_folder(manifest, source.parent / name)


@pytest.mark.parametrize(
    ("manifest", "place"), [("source", "source/store"), ("source", "."), ("source", "new"), ("m.csv", ".")]
)
def test_any_other_is_not(source: Path, manifest: str, place: str) -> None:
    assert not is_source_folder(str(source.parent / manifest), source.parent / place)
    assert not is_source_folder(None, source.parent / place)
