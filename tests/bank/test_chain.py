"""The config's chain for a field: of signals at their rate, of pictures where they have more axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bank.conftest import Signals

from flatout.augment import GPUCompose, GPUImageCompose
from flatout.bank.chain import config_chain
from flatout.errors import ConfigError
from flatout.store import DataPreprocessor, StoreReader

HIGH_PASS: dict[str, Any] = {"high_pass": {"cutoff_hz": [2, 10]}}


class Pictures:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"image": np.zeros((1, 4, 4), np.float32)}


def made(folder: Path, items: Any, **field: Any) -> StoreReader:
    name = next(iter(items[0]))
    DataPreprocessor.from_dataset(items, folder, num_workers=0, fields={name: field}).run()
    return StoreReader(folder)


def rates(chain: Any) -> list[int]:
    return [member.sample_rate for member in chain if hasattr(member, "sample_rate")]


def test_settings_in_hz_are_meant_at_the_rate_of_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = made(tmp_path / "store", Signals(2), kind="signal", rate=100, source_rate=100)
    assert rates(config_chain(store, "signal", HIGH_PASS)) == [100]
    assert rates(config_chain(store, "signal", {**HIGH_PASS, "sample_rate": 50})) == [50]
    assert "Hz" not in caplog.text


def test_a_rate_that_nobody_knows_is_told(store: StoreReader, caplog: pytest.LogCaptureFixture) -> None:
    assert isinstance(config_chain(store, "signal", None), GPUCompose)
    assert caplog.text == ""  # nothing is in Hz
    assert rates(config_chain(store, "signal", HIGH_PASS)) == [5000]
    assert "augmentation.high_pass is in Hz" in caplog.text
    assert "set augmentation.sample_rate" in caplog.text


def test_pictures_have_their_own_section(tmp_path: Path) -> None:
    store = made(tmp_path / "store", Pictures(), kind="image")
    chain = config_chain(store, "image", {"images": {"flip": {}}})
    assert isinstance(chain, GPUImageCompose)
    with pytest.raises(ConfigError, match=r"augmentation\.images names no transform"):
        config_chain(store, "image", None)
