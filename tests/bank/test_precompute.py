"""Views made once: as a store, or as one file of tensors that holds nothing but them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bank.conftest import NUM_ITEMS, Signals, make_store
from tests.bank.test_order import StopAfter
from tests.bank.transforms import scaled

from flatout.bank import ViewBank, precompute_views
from flatout.errors import ConfigError, LoaderError
from flatout.store import DataPreprocessor, StoreReader, verify


def precompute(folder: Path, output: Path, **settings: Any) -> Any:
    return precompute_views(folder, output, **{"transform": scaled, "seed": 5, "num_workers": 0, **settings})


def test_a_folder_becomes_a_store(folder: Path, tmp_path: Path) -> None:
    made = precompute(folder, tmp_path / "views", split="train")
    views = StoreReader(tmp_path / "views")
    assert verify(tmp_path / "views")
    assert list(views.fields) == list(made.names) == ["view1", "view2", "subs1", "subs2", "age", "label"]
    assert made.to_json()["num_samples"] == len(views) == len(StoreReader(folder).positions("train"))
    assert views.fields["label"].kind == "label"


def test_a_file_holds_plain_tensors(folder: Path, tmp_path: Path) -> None:
    precompute(folder, tmp_path / "new" / "views.pt", epoch=4, keep=["signal", "label"])
    found = torch.load(tmp_path / "new" / "views.pt", weights_only=True)
    assert list(found) == ["key", "view1", "view2", "subs1", "subs2", "signal", "label", "keys"]
    assert found["keys"] == StoreReader(folder).keys()
    assert found["subs2"].shape == (NUM_ITEMS, 4, 1, 12)
    with ViewBank(folder, transform=scaled, seed=5, num_workers=0, background=False) as bank:
        bank.refresh_view_cache(4, force=True)
        own = bank({"key": found["key"]}, 4)
    for name in bank.names:
        assert torch.equal(found[name], own[name])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["views.pt"]


def test_stopped_it_leaves_no_file_and_continues(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 2048)
    with pytest.raises(KeyboardInterrupt):
        precompute(folder, tmp_path / "views.pt", progress=StopAfter(NUM_ITEMS // 2))
    assert not (tmp_path / "views.pt").exists()
    finished = len(list((tmp_path / "views.pt.parts" / "shards").glob("*.h5")))
    assert 0 < finished < NUM_ITEMS
    precompute(folder, tmp_path / "views.pt")
    assert torch.load(tmp_path / "views.pt", weights_only=True)["view1"].shape == (NUM_ITEMS, 1, 48)
    assert not (tmp_path / "views.pt.parts").exists()


def test_what_cannot_be_one_tensor_is_told_before_any_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ragged(Signals):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"signal": super().__getitem__(at)["signal"][:, : 20 + at % 5]}

    ragged = make_store(tmp_path / "ragged", Ragged(9))
    with pytest.raises(ConfigError, match="differ in shape"):
        precompute(ragged, tmp_path / "views.pt")
    monkeypatch.setattr("flatout.loader.memory.PRELOAD_SHARE", 0.0)
    with pytest.raises(LoaderError, match=r"a \.pt file of views"):
        precompute(folder, tmp_path / "views.pt")
    assert not (tmp_path / "views.pt.parts").exists()


def test_an_output_in_the_way(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.pt").mkdir()
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    for store, output, message in (
        (folder, tmp_path / "file", "is a file"),
        (folder, tmp_path / "folder.pt", "is a folder"),
        (own, own, "the store itself"),
    ):
        with pytest.raises(ConfigError, match=message):
            precompute(store, output)
    assert StoreReader(own).fields.keys() == StoreReader(folder).fields.keys()


def test_a_store_of_something_else_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other", Signals(5))
    root = (other / "data_metadata.json").read_bytes()
    with pytest.raises(ConfigError, match="store of something else \\(signal, age, label\\)"):
        precompute(folder, other)
    assert (other / "data_metadata.json").read_bytes() == root
    precompute(folder, tmp_path / "views")
    assert (
        precompute(folder, tmp_path / "views", seed=6).stats.processed == NUM_ITEMS
    )  # views may be drawn anew


def test_views_of_images_by_the_config(tmp_path: Path) -> None:
    class Pictures:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"image": np.random.default_rng(at).random((1, 6, 8), np.float32)}

    fields = {"image": {"kind": "image"}}
    DataPreprocessor.from_dataset(Pictures(), tmp_path / "store", num_workers=0, fields=fields).run()
    config = {"images": {"flip": {"p": 1.0}}}
    settings: dict[str, Any] = {"transform": None, "config": config, "field": "image"}
    precompute(tmp_path / "store", tmp_path / "views", num_substructures=0, **settings)
    for at in range(4):
        view = StoreReader(tmp_path / "views").read(at)["view1"]
        assert np.array_equal(view, StoreReader(tmp_path / "store").read(at)["image"][..., ::-1])
    with pytest.raises(ConfigError, match="--num-substructures 0"):
        precompute(tmp_path / "store", tmp_path / "parts", **settings)
