"""From a config's caches to where samples are kept, with what the user should know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.config import load_config
from flatout.errors import ConfigError, LoaderError
from flatout.loader import create_dataloaders
from flatout.loader.build import FastBuilder, StandardBuilder
from flatout.loader.cache import CacheRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Gpu, Machine
from flatout.loader.memory import CACHE_SHARE, DEVICE_SHARE, BatchesAhead
from flatout.loader.platform import Decision
from flatout.loader.raw import RawSource
from flatout.loader.tiers import batches_on_device, cache_rule, training_device
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


@pytest.mark.parametrize(
    ("asked", "machine", "wanted"),
    [
        ("auto", MACHINE, "cpu"),
        ("cpu", WITH_GPU, "cpu"),
        ("auto", WITH_GPU, "cuda"),
        ("cuda:1", WITH_GPU, "cuda:1"),
        ("cuda", MACHINE, "cpu"),
    ],
)
def test_batches_arrive_where_the_training_is(raw: Any, asked: str, machine: Machine, wanted: str) -> None:
    config = raw.prepare(fields=PLAIN)
    builder = FastBuilder(
        load_config(config | {"device": asked}), StoreReader(config["preprocessed_data_dir"]), machine
    )
    loader = builder.build("train")
    assert loader is not None
    assert loader._transfer.device == torch.device(wanted)
    assert [note for note in builder.notes if "is not there" in note] == (
        ["device: cuda is not there; the CPU is used"] if asked == "cuda" and machine is MACHINE else []
    )


@given(st.integers(0, 8), st.integers(1, 9), st.integers(1, 1 << 31), st.integers(1, 1 << 36))
def test_batches_that_wait_on_the_gpu_take_their_share_of_it_at_the_most(
    num_workers: int, prefetch_factor: int, batch_bytes: int, memory_bytes: int
) -> None:
    notes: list[str] = []
    decided = Decision(num_workers, prefetch_factor, False, True, None)
    found = batches_on_device(decided, batch_bytes, Gpu("a", memory_bytes), notes)
    num_before, num_ahead = num_workers * prefetch_factor, found.num_workers * (found.prefetch_factor or 1)
    most = max(1, int(memory_bytes * DEVICE_SHARE) // batch_bytes)
    assert num_ahead <= max(most, 0)
    assert (found == decided) == (num_before <= most) == (not notes)
    if num_before > most:
        assert num_ahead >= 1
        assert num_ahead + found.num_workers > most or found.prefetch_factor == prefetch_factor


def test_what_waits_on_the_gpu_is_said(raw: Any) -> None:
    config = raw.prepare(fields=PLAIN)
    small = replace(MACHINE, gpu=Gpu("a", 40_000))
    settings = {"num_workers": 2, "prefetch_factor": 8}
    builder = FastBuilder(load_config(config | settings), StoreReader(config["preprocessed_data_dir"]), small)
    loader = builder.build("train")
    assert loader is not None
    assert loader.prefetching == (2, 1)
    (note,) = builder.notes
    assert note.startswith(
        "prefetch_factor: 2 x 8 batches of 992 bytes would wait on the GPU; 2 x 1 do, 5% of its"
    )


@pytest.mark.parametrize(("machine", "wanted"), [(MACHINE, 4 * 60 + 8), (WITH_GPU, 60 + 8)])
def test_encoded_samples_wait_restored_in_host_memory_and_as_stored_on_the_gpu(
    raw: Any, monkeypatch: pytest.MonkeyPatch, machine: Machine, wanted: int
) -> None:
    config = raw.prepare(fields={"image": {"kind": "array", "encoding": "uint8"}, "label": {"kind": "label"}})
    seen: list[BatchesAhead] = []
    monkeypatch.setattr("flatout.loader.build.check_memory", lambda ahead, *_, **__: seen.append(ahead))
    FastBuilder(load_config(config), StoreReader(config["preprocessed_data_dir"]), machine).build("train")
    assert [ahead.sample_bytes for ahead in seen] == [wanted]


def test_ranks_of_one_machine_share_the_cache_s_memory(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = raw.prepare(fields=PACKED)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert rule_of(config)[0] == CacheRule(1000, int(MACHINE.free_bytes * CACHE_SHARE) // 4)
    rule, note = rule_of(config, replace(MACHINE, free_bytes=32_000), cache_size=500)
    assert rule == CacheRule(500, 2000)
    assert note.endswith("25% of the free memory for 4 ranks")


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_cache_of_a_split_must_fit_beside_the_others(
    raw: Any, monkeypatch: pytest.MonkeyPatch, num_ranks: int
) -> None:
    config = raw.prepare(fields=PACKED)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(num_ranks))
    machine = replace(MACHINE, free_bytes=8000)
    builder = FastBuilder(load_config(config), StoreReader(config["preprocessed_data_dir"]), machine)
    rules = []
    for split in ("train", "val"):
        loader = builder.build(split)
        assert loader is not None
        rules.append(loader._read.cache)
    first = 2000 // num_ranks  # of train's 14 samples of 240 bytes
    assert rules == [CacheRule(1000, first), CacheRule(1000, (8000 - first * num_ranks) // 4 // num_ranks)]
