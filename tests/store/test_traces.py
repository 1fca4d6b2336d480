"""A prepare that comes to nothing leaves its place as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flatout.errors import ConfigError, ManifestError, PrepareError, StoreLockedError, TooManyBadError
from flatout.store import DataPreprocessor
from flatout.store.lock import locked
from flatout.store.traces import Traces


class Items:
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, every folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def prepare(items: list[Any], store: Path, **settings: Any) -> None:
    settings = {"num_workers": 0, "transform_version": "1", **settings}
    DataPreprocessor.from_dataset(Items(items), store, **settings).run()


@pytest.mark.parametrize(
    ("items", "settings"),
    [([], {}), ([{"x": 1.0}], {"fields": {"x": None}}), ([{"x": 1.0}], {"engine": "ray"})],
)
def test_a_dataset_that_cannot_be_used_leaves_nothing(
    tmp_path: Path, items: list[Any], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "engine" in settings:
        monkeypatch.setattr("flatout.store.prepare.make_engine", lambda *_: 1 / 0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    for place in ("new/and/deep", "mine", "empty", "mine/inside"):
        with pytest.raises((ConfigError, PrepareError, ZeroDivisionError)):
            prepare(items, tmp_path / place, **settings)
        assert tree(tmp_path) == before, place


def test_a_manifest_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    settings = {"manifest": str(tmp_path / "absent.csv"), "preprocessed_data_dir": str(tmp_path / "store")}
    with pytest.raises(ManifestError):
        DataPreprocessor(settings).run()
    assert tree(tmp_path) == {}


def test_what_is_of_use_stays(tmp_path: Path) -> None:
    with pytest.raises(TooManyBadError):
        prepare([{"x": 1.0}, {"x": float("nan")}], tmp_path / "store")
    assert (tmp_path / "store" / "quarantine.jsonl").read_text().count("\n") > 0


def test_a_store_stays_whatever_a_later_run_says(tmp_path: Path) -> None:
    prepare([{"x": 1.0}] * 4, tmp_path / "store")
    before = tree(tmp_path)
    with pytest.raises(ConfigError):
        prepare([{"x": 1.0}] * 4, tmp_path / "store", fields={"x": None})
    after = tree(tmp_path)
    log = "store/preprocessing.log"
    assert {**after, log: b""} == {**before, log: b""}


def test_what_another_prepare_is_at_stays(tmp_path: Path) -> None:
    with locked(tmp_path / "store"):
        before = tree(tmp_path)
        with pytest.raises(StoreLockedError):
            prepare([], tmp_path / "store")
        assert tree(tmp_path) == before


def test_what_somebody_else_puts_there_meanwhile_stays(tmp_path: Path) -> None:
    traces = Traces(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "shards").mkdir(parents=True)
    (tmp_path / "a" / "theirs").touch()
    traces.remove()
    assert tree(tmp_path) == {"a": None, "a/theirs": b""}
    traces = Traces(tmp_path / "c")
    (tmp_path / "c" / "shards").mkdir(parents=True)
    (tmp_path / "c" / "theirs").touch()
    before = tree(tmp_path)
    traces.remove()
    assert tree(tmp_path) == before
