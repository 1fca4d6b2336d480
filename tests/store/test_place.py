"""A store has a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.store import DataPreprocessor
from flatout.store.place import foreign_names, is_source_folder, refuse_source_folder


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


def test_a_class_folder_of_the_sources_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    for name in ("AS", "N"):
        (tmp_path / "hearts" / name).mkdir(parents=True)
        (tmp_path / "hearts" / name / "1.wav").touch()
    place = tmp_path / "hearts" / "AS"
    settings = {"manifest": str(tmp_path / "hearts"), "preprocessed_data_dir": str(place)}
    with pytest.raises(ConfigError, match=r"what is no store's \('1\.wav'\).*such as AS_store"):
        DataPreprocessor(load_config(settings, environ={})).run()
    assert [path.name for path in place.iterdir()] == ["1.wav"]


@pytest.mark.parametrize("names", [["a.csv"], ["patients/1.wav", "x.h5"], ["cache.json", "shards/1"]])
@pytest.mark.parametrize("manifest", ["m.csv", None])
def test_a_new_place_among_files_of_others_is_refused(
    tmp_path: Path, names: list[str], manifest: str | None
) -> None:
    for name in names:
        (tmp_path / "place" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "place" / name).touch()
    with pytest.raises(ConfigError, match="a store needs a folder of its own"):
        refuse_source_folder(manifest, tmp_path / "place")


@pytest.mark.parametrize("first", ["data_metadata.json", "journal.jsonl"])
def test_what_came_to_a_store_is_let_be(tmp_path: Path, first: str) -> None:
    for name in ("README.md", "runs"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"README\.md"):
        refuse_source_folder(None, tmp_path)
    (tmp_path / first).touch()
    refuse_source_folder(None, tmp_path)


def test_what_a_prepare_leaves_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("id,n\na,1.5\nb,2.5\n")
    settings = {"manifest": str(tmp_path / "m.csv"), "preprocessed_data_dir": str(tmp_path / "store")}
    DataPreprocessor(load_config({**settings, "num_workers": 0}, environ={})).run()
    killed = ["index-1.parquet.12-0123abcd.tmp", f"plan-{7:016x}.parquet", "prepare.lock", "pending.json"]
    for name in (*killed, ".nfs01", "slurm-7.log", "lost+found"):
        (tmp_path / "store" / name).touch()
    assert foreign_names(tmp_path / "store") == []
    (tmp_path / "store" / "data_metadata.json").unlink()
    refuse_source_folder(None, tmp_path / "store")
