"""A small store with every form of field, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.loader.ragged_items import RAGGED_FIELDS, RaggedItems

from flatout.loader import lane
from flatout.store import DataPreprocessor, StoreReader

NUM_ITEMS = 103


class Items:
    """Items of fixed, ragged, quantised and scalar fields, a function of their number alone."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        return {
            "image": random.random((2, 40, 16), np.float32),
            "small": random.random((5,), np.float32),
            "coded": random.random((3, 9), np.float32),
            "half": random.random((700,), np.float32),
            "packed": random.integers(0, 9, (50,)).astype(np.int32),
            "series": random.random((at % 7 + 1, 3), np.float32),
            "label": at % 5,
        }


class PlainItems:
    """As many items of fields that only have to be copied: their later epochs come by lanes."""

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {name: Items()[at][name] for name in ("image", "label")}


FIELDS = {
    "coded": {"kind": "transform", "encoding": "uint8"},
    "half": {"kind": "transform", "encoding": "bfloat16"},
    "packed": {"kind": "transform", "compression": "zstd"},
    "series": {"kind": "sequence"},
}


@pytest.fixture(scope="session", autouse=True)
def lanes_for_small_splits() -> Iterator[None]:
    """Later epochs of the small stores here come by lanes, too, where all fields allow it: `plain_store`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane, "LANE_BYTES", 0)
        patch.setattr(lane, "all_major_faults", lambda: 0)  # a machine just started fetches libraries
        yield


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder: Path = tmp_path_factory.mktemp("loader") / "store"
    DataPreprocessor.from_dataset(Items(), folder, num_workers=0, fields=FIELDS).run()
    return StoreReader(folder)


@pytest.fixture(scope="session")
def plain_store(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder: Path = tmp_path_factory.mktemp("plain") / "store"
    DataPreprocessor.from_dataset(PlainItems(), folder, num_workers=0).run()
    return StoreReader(folder)


@pytest.fixture(scope="session", params=["store", "plain_store"], ids=["producers", "lanes"])
def any_store(request: pytest.FixtureRequest) -> StoreReader:
    """The batches of `begun` come from producers, or by lanes."""
    found: StoreReader = request.getfixturevalue(request.param)
    return found


class RawFiles:
    """A folder of npy files with a manifest; each row is a function of its number alone."""

    def __init__(self, folder: Path, num_rows: int = 24) -> None:
        self.folder = folder
        self.names = [f"s{number:02d}" for number in range(num_rows)]
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(self.names):
            random = np.random.default_rng(number)
            np.save(folder / f"{name}.npy", random.normal(size=(2, 6, 5)).astype(np.float32))
            np.save(folder / f"{name}-series.npy", random.normal(size=(1 + number % 5, 3)).astype(np.float32))
            np.save(
                folder / f"{name}-sound.npy", random.normal(size=(10 * (2 + number % 3),)).astype(np.float32)
            )
        self.write_manifest(self.names)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def write_manifest(self, names: list[str]) -> None:
        lines = []
        for name in names:
            label = ("cat", "dog", "eel")[int(name[1:]) % 3]
            lines.append(f"{name},{name}.npy,{name}-series.npy,{name}-sound.npy,{label},w{name}")
        (self.folder / "rows.csv").write_text("\n".join(["id,image,series,sound,label,text", *lines]) + "\n")

    def config(self, fields: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
        fields = fields or {
            "image": {"kind": "array"},
            "series": {"kind": "sequence"},
            "label": {"kind": "label"},
            "text": {"kind": "text"},
        }
        return {
            "manifest": str(self.folder / "rows.csv"),
            "preprocessed_data_dir": str(self.store),
            "fields": fields,
            "num_workers": 0,
            "batch_size": 4,
            "splits": {"ratios": {"train": 0.6, "val": 0.2, "test": 0.2}},
            **settings,
        }

    def prepare(self, **settings: Any) -> dict[str, Any]:
        """The config, with its store made."""
        config = self.config(**settings)
        DataPreprocessor(config).run()
        return config


WINDOWS = {
    "sound": {"kind": "signal", "source_rate": 100, "split": "windows", "length": 10},
    "label": {"kind": "label"},
}
"""Fields whose rows give 2, 3 or 4 samples each."""


@pytest.fixture
def raw(tmp_path: Path) -> RawFiles:
    return RawFiles(tmp_path / "raw")


@pytest.fixture(scope="session")
def windows() -> dict[str, Any]:
    return WINDOWS


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The config of raw files whose store is made; do not change either."""
    return RawFiles(tmp_path_factory.mktemp("prepared") / "raw").prepare()


@pytest.fixture(scope="session")
def ragged_store(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    """A store with every form of ragged field."""
    folder: Path = tmp_path_factory.mktemp("ragged") / "store"
    DataPreprocessor.from_dataset(RaggedItems(), folder, num_workers=0, fields=RAGGED_FIELDS).run()
    return StoreReader(folder)


@pytest.fixture(scope="session")
def steps_store(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    """The same samples with two ragged fields only: quick to read."""
    folder: Path = tmp_path_factory.mktemp("steps") / "store"
    items = RaggedItems("steps", "words", "label")
    fields = {"steps": RAGGED_FIELDS["steps"]}
    DataPreprocessor.from_dataset(items, folder, num_workers=0, fields=fields).run()
    return StoreReader(folder)
