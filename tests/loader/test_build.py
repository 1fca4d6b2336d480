"""From a config's settings to one split's loader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from flatout.config import load_config
from flatout.errors import LoaderError
from flatout.loader import build
from flatout.loader.build import FastBuilder, StandardBuilder, is_shuffled, preload_setting, settings_for
from flatout.loader.machine import Machine
from flatout.loader.raw import RawSource
from flatout.store import StoreReader

MACHINE = Machine("linux", 2, 1 << 34, 1 << 33, 1 << 30)


def builders(config: dict[str, Any], machine: Machine = MACHINE, **settings: Any) -> list[Any]:
    loaded = load_config({**config, **settings})
    store = StoreReader(config["preprocessed_data_dir"])
    return [FastBuilder(loaded, store, machine), StandardBuilder(loaded, RawSource(loaded), machine)]


def same_batches(one: Any, other: Any) -> None:
    for batch, wanted in zip(one, other, strict=True):
        assert batch.keys() == wanted.keys()
        for name, value in batch.items():
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"seed": 4, "drop_last": True},
        {"max_sequence_length": 2, "use_dynamic_padding": False},
        {"train_ds": {"batch_size": 5, "shuffle": False}},
    ],
)
def test_both_paths_give_the_same_batches_in_the_same_order(
    prepared: dict[str, Any], settings: dict[str, Any]
) -> None:
    fast, standard = builders(prepared, **settings)
    for split in ("train", "val", "test"):
        ones, others = fast.build(split), standard.build(split)
        assert len(ones) == len(others)
        for _ in range(2):
            same_batches(ones, others)


def test_windows_too(raw: Any, windows: dict[str, Any]) -> None:
    fast, standard = builders(raw.prepare(fields=windows))
    same_batches(fast.build("train"), standard.build("train"))


def test_shuffling_is_for_train_unless_said(prepared: dict[str, Any]) -> None:
    config = load_config(prepared)
    assert is_shuffled(settings_for(config, "train"), "train")
    assert not is_shuffled(settings_for(config, "val"), "val")
    said = load_config({**prepared, "validation_ds": {"shuffle": True}, "train_ds": {"shuffle": False}})
    assert is_shuffled(settings_for(said, "val"), "val")
    assert not is_shuffled(settings_for(said, "train"), "train")


def test_settings_remember_what_was_given(prepared: dict[str, Any]) -> None:
    config = load_config({**prepared, "train_ds": {"pin_memory": True}})
    train, val = settings_for(config, "train"), settings_for(config, "val")
    assert train == config.loader_for("train")
    assert "pin_memory" in train.model_fields_set
    assert "crc" not in train.model_fields_set
    assert "pin_memory" not in val.model_fields_set
    assert settings_for(config, "other") == config.loader_for("other")


def test_defaults_are_not_talked_about(prepared: dict[str, Any]) -> None:
    fast, _ = builders(prepared, num_workers="auto")
    fast.build("train")
    assert fast.notes == ["num_workers: auto is 1 producer thread: 2 cores, of which the consumer has one"]


def test_which_splits_are_preloaded(prepared: dict[str, Any]) -> None:
    cache = {"preload_val_data": True}
    config = load_config({**prepared, "cache_config": cache})
    assert [preload_setting(config, split) for split in ("train", "val", "test")] == [
        None,
        "cache_config.preload_val_data",
        None,
    ]
    config = load_config({**prepared, "cache_in_memory": True})
    assert preload_setting(config, "test") == "cache_in_memory"


def test_a_preload_reads_the_split_and_must_fit_beside_the_others(
    prepared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def preload(store: Any, positions: Any, machine: Machine, what: str) -> int:
        seen.append(machine.free_bytes)
        return 1000

    monkeypatch.setattr(build, "preload", preload)
    fast, _ = builders(prepared, cache_in_memory=True)
    fast.build("train")
    fast.build("val")
    assert seen == [MACHINE.free_bytes, MACHINE.free_bytes - 1000]


@pytest.mark.parametrize("path", [0, 1])
def test_a_preload_that_does_not_fit_is_refused_with_the_numbers(prepared: dict[str, Any], path: int) -> None:
    tiny = replace(MACHINE, free_bytes=2000)
    builder = builders(prepared, tiny, cache_config={"preload_train_data": True})[path]
    with pytest.raises(LoaderError, match=r"2\.0 KiB of free memory"):
        builder.build("train")


@pytest.mark.parametrize("path", [0, 1])
def test_batches_ahead_that_do_not_fit_are_refused(prepared: dict[str, Any], path: int) -> None:
    tiny = replace(MACHINE, free_bytes=8000)
    builder = builders(prepared, tiny, num_workers=2, prefetch_factor=8)[path]
    with pytest.raises(LoaderError, match="2 workers x 8 batches ahead x 4 samples"):
        builder.build("train")


def test_a_kept_split_needs_no_workers(prepared: dict[str, Any]) -> None:
    _, standard = builders(prepared, num_workers="auto", cache_config={"preload_val_data": True})
    assert standard.build("val").num_workers == 0
    assert standard.build("train").num_workers == 2


def test_the_standard_loader_is_built_as_decided(prepared: dict[str, Any]) -> None:
    _, standard = builders(prepared, num_workers=2, prefetch_factor=3, pin_memory=True)
    loader = standard.build("train")
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 3, True)
    assert not loader.pin_memory
    assert loader.multiprocessing_context.get_start_method() == "fork"
    assert standard.notes == ["pin_memory: no effect without CUDA"]


def test_worker_processes_give_the_same_epochs(prepared: dict[str, Any]) -> None:
    fast, standard = builders(prepared, num_workers=2)
    ones, others = fast.build("train"), standard.build("train")
    for _ in range(2):
        same_batches(ones, others)
    ones.sampler.set_epoch(7)
    others.sampler.set_epoch(7)
    same_batches(ones, others)


def test_shard_local_order(prepared: dict[str, Any]) -> None:
    fast, standard = builders(prepared, order="shard_local")
    keys = sorted(key for batch in fast.build("train") for key in batch["key"].tolist())
    assert keys == sorted(key for batch in standard.build("train") for key in batch["key"].tolist())
    assert any("no shards" in note for note in standard.notes)
    assert "shard-local" in fast.build("train").state_dict()["order"]
    assert fast.build("val").state_dict()["order"] == "sequential"


def test_padding_to_nothing_is_said(prepared: dict[str, Any]) -> None:
    for builder in builders(prepared, use_dynamic_padding=False):
        builder.build("train")
        assert any("needs max_sequence_length" in note for note in builder.notes)
