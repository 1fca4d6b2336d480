"""From a config's caches to where samples are kept, with what the user should know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flatout.config import load_config
from flatout.errors import ConfigError, LoaderError
from flatout.loader import create_dataloaders
from flatout.loader.build import FastBuilder, StandardBuilder
from flatout.loader.cache import CacheRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Gpu, Machine
from flatout.loader.memory import CACHE_SHARE
from flatout.loader.raw import RawSource
from flatout.loader.tiers import cache_rule, training_device
from flatout.store import StoreReader

MACHINE = Machine("linux", 2, 1 << 34, 1 << 33, 1 << 30)
WITH_GPU = replace(MACHINE, gpu=Gpu("a", 1 << 33))
PLAIN = {"image": {"kind": "array"}, "label": {"kind": "label"}}
PACKED = {"image": {"kind": "array", "compression": "zstd"}, "label": {"kind": "label"}}


def rule_of(config: dict[str, Any], machine: Machine = MACHINE, **cache: Any) -> tuple[CacheRule | None, str]:
    loaded = load_config({**config, "cache_config": cache})
    store, notes = StoreReader(config["preprocessed_data_dir"]), []
    rule = cache_rule(loaded, store, np.arange(len(store)), machine, notes)
    return rule, " ".join(notes)


def test_compressed_fields_are_kept_as_the_config_says(raw: Any) -> None:
    config = raw.prepare(fields=PACKED)
    most = int(MACHINE.free_bytes * CACHE_SHARE)
    assert rule_of(config) == (CacheRule(1000, most), "")
    assert rule_of(config, cache_size=7) == (CacheRule(7, most), "")
    assert rule_of(config, cache_size=0) == (None, "")
    assert rule_of(config, enable_cache=False) == (None, "")


def test_a_cache_larger_than_the_memory_is_cut_and_said(raw: Any) -> None:
    config = raw.prepare(fields=PACKED)
    rule, note = rule_of(config, replace(MACHINE, free_bytes=8000), cache_size=500)
    assert rule == CacheRule(500, 2000)
    assert "24 decompressed samples would take 5.6 KiB; 2.0 KiB of them are kept, 25%" in note


def test_a_cache_without_use_is_said_to_those_who_ask(raw: Any) -> None:
    config = raw.prepare(fields=PLAIN)
    assert rule_of(config) == (None, "")
    for asked in ({"enable_cache": True}, {"cache_size": 7}):
        rule, note = rule_of(config, **asked)
        assert rule is None
        assert "no field is compressed" in note
        assert "page cache" in note
    assert rule_of(config, enable_cache=False) == (None, "")


def test_through_create_dataloaders(raw: Any) -> None:
    config = raw.prepare(fields=PACKED)
    train, *_ = create_dataloaders(config | {"cache_config": {"cache_size": 5}})
    assert isinstance(train, FastDataLoader)
    num_samples = sum(len(batch["key"]) for _ in range(2) for batch in train)
    stats = train.cache_stats
    assert stats.num_arrays == 5
    assert stats.hits + stats.misses == num_samples


def test_a_split_on_the_device_through_create_dataloaders(raw: Any) -> None:
    config = raw.prepare(fields=PLAIN)
    held, plain = (
        create_dataloaders(config | {"cache_on_device": True, "device": "cpu"}),
        create_dataloaders(config),
    )
    for one, other in zip(held, plain, strict=True):
        assert one is not None
        assert other is not None
        for batch, wanted in zip(one, other, strict=True):
            assert all(torch.equal(batch[name], wanted[name]) for name in wanted)


def test_splits_that_do_not_fit_on_the_device_together_are_refused_at_once(raw: Any) -> None:
    config = raw.prepare(fields=PLAIN)
    loaded, store = (
        load_config(config | {"cache_on_device": True}),
        StoreReader(config["preprocessed_data_dir"]),
    )
    sizes = {name: 248 * len(store.positions(name)) for name in ("train", "val")}
    machine = replace(MACHINE, free_bytes=int(sum(sizes.values()) / 0.9) - 10)
    builder = FastBuilder(loaded, store, machine)
    assert builder.build("train") is not None
    with pytest.raises(LoaderError, match=r"cache_on_device of split 'val': .* do not fit into"):
        builder.build("val")


def test_ragged_fields_are_refused_at_once(prepared: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"cache_on_device of split 'train'.*field 'series'"):
        create_dataloaders(prepared | {"cache_on_device": True})


def test_damage_is_skipped_as_the_config_says(raw: Any) -> None:
    config = raw.prepare(fields=PLAIN) | {"on_damage": "skip"}
    train, *_ = create_dataloaders(config)
    assert isinstance(train, FastDataLoader)
    assert all(batch["valid"].all() for batch in train)
    assert train.damaged == []


def test_raw_files_can_do_neither_and_that_is_said(prepared: dict[str, Any]) -> None:
    loaded = load_config(prepared | {"cache_on_device": True, "on_damage": "skip"})
    builder = StandardBuilder(loaded, RawSource(loaded), MACHINE)
    builder.build("train")
    assert [note.partition(":")[0] for note in builder.notes] == ["cache_on_device", "on_damage"]


@pytest.mark.parametrize(
    ("asked", "machine", "wanted"),
    [
        ("auto", MACHINE, "cpu"),
        ("auto", WITH_GPU, "cuda"),
        ("cuda:1", WITH_GPU, "cuda:1"),
        ("cuda", MACHINE, "cpu"),
        ("cpu", WITH_GPU, "cpu"),
        ("mps", MACHINE, "mps"),
    ],
)
def test_the_training_device(asked: str, machine: Machine, wanted: str) -> None:
    notes: list[str] = []
    assert training_device(load_config({"device": asked}), machine, notes) == torch.device(wanted)
    assert bool(notes) == (asked == "cuda")
