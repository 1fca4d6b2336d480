"""benchmark_data_loading: the keys that the guide's snippet reads, from batches that were really delivered."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.loader import measure
from flatout.loader.create import create_dataloaders
from flatout.loader.measure import benchmark_data_loading, measure_loader

RATES = {
    "train_batches_per_second",
    "val_batches_per_second",
    "train_samples_per_second",
    "val_samples_per_second",
    "seconds_per_batch",
    "first_batch_seconds",
}


def test_the_guides_snippet(prepared: dict[str, Any]) -> None:
    config = load_config(prepared)
    results = benchmark_data_loading(config, num_batches=50)
    assert f"{results['train_batches_per_second']:.2f} batches/sec"
    assert results.keys() == RATES | {"standard", "fast", "speedup"}
    assert results["standard"].keys() == results["fast"].keys() == RATES
    assert all(results[name] == results["fast"][name] > 0 for name in RATES)
    fast, standard = (results[path]["train_samples_per_second"] for path in ("fast", "standard"))
    assert results["speedup"] == fast / standard
    assert results["seconds_per_batch"] * results["train_batches_per_second"] == pytest.approx(1)


def test_without_a_store_the_standard_path_is_measured(raw: Any) -> None:
    results = benchmark_data_loading(raw.config(), num_batches=2)
    assert results["fast"] is results["speedup"] is None
    assert results["train_batches_per_second"] == results["standard"]["train_batches_per_second"]


def test_a_store_alone(prepared: dict[str, Any]) -> None:
    folder = prepared["preprocessed_data_dir"]
    results = benchmark_data_loading({"preprocessed_data_dir": folder, "num_workers": 1}, num_batches=2)
    assert results["standard"] is results["speedup"] is None
    assert results["train_samples_per_second"] > 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flatout-producer")]


def test_neither(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to measure"):
        benchmark_data_loading({"preprocessed_data_dir": str(tmp_path)})
    with pytest.raises(ConfigError, match="num_batches 0"):
        benchmark_data_loading({}, num_batches=0)


def test_a_split_without_samples_has_no_rate(raw: Any) -> None:
    results = benchmark_data_loading(raw.prepare(splits={"ratios": {"train": 1}}), num_batches=2)
    assert results["val_batches_per_second"] is results["fast"]["val_samples_per_second"] is None
    assert results["speedup"] > 0


def test_short_splits_are_begun_again_after_a_first_batch_that_does_not_count(prepared: dict[str, Any]) -> None:
    loader = create_dataloaders(prepared | {"batch_size": 2}).val
    assert loader is not None
    epoch = [len(batch["key"]) for batch in loader]
    assert epoch == [2, 1]
    speed = measure_loader(loader, 9)
    assert speed is not None
    assert (speed.num_batches, speed.num_samples) == (9, 13)


def test_an_empty_epoch_is_not_waited_for(prepared: dict[str, Any]) -> None:
    loader = create_dataloaders(prepared | {"batch_size": 20, "drop_last": True}).val
    assert loader is not None
    assert measure_loader(loader, 3) is None


def test_the_standard_path_decodes_every_time(
    prepared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def keep(config: Any, *rest: Any) -> Any:
        seen.append(config)
        return before(config, *rest)

    before = measure.StandardBuilder
    monkeypatch.setattr(measure, "StandardBuilder", keep)
    cache = {"preload_train_data": True, "cache_size": 7}
    benchmark_data_loading(prepared | {"cache_in_memory": True, "cache_config": cache}, num_batches=1)
    (config,) = seen
    assert not config.cache_in_memory
    assert not config.cache_config.preload_train_data
    assert config.cache_config.cache_size == 7
