"""Both paths give the same batches whatever the settings on ragged samples are."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from flatout.config import load_config
from flatout.errors import ConfigError
from flatout.loader.batching import ragged_notes, ragged_rule, with_mean_batch
from flatout.loader.build import FastBuilder, StandardBuilder, settings_for
from flatout.loader.lengths import RaggedRule
from flatout.loader.machine import Machine
from flatout.loader.raw import RawSource
from flatout.loader.raw_lengths import raw_lengths
from flatout.loader.sampler import DrawnSamples, PlanSampler
from flatout.loader.standard import StandardDataset
from flatout.store import StoreReader

MACHINE = Machine("linux", 2, 1 << 34, 1 << 33, 1 << 30)
FORMS: list[dict[str, Any]] = [
    {"max_sequence_length": 2, "sequence_crop": "random", "seed": 9},
    {"max_sequence_length": 2, "sequence_crop": "tail", "pad_to_multiple": 4},
    {"length_buckets": True},
    {"length_buckets": True, "drop_last": True, "max_sequence_length": 3, "sequence_crop": "random"},
    {"max_tokens": 12},
    {"max_tokens": 12, "pad_to_multiple": 2, "shuffle": True},
]


def builders(config: dict[str, Any], **settings: Any) -> tuple[FastBuilder, StandardBuilder]:
    loaded = load_config({**config, **settings})
    store = StoreReader(config["preprocessed_data_dir"])
    return FastBuilder(loaded, store, MACHINE), StandardBuilder(loaded, RawSource(loaded), MACHINE)


def same_batches(one: Any, other: Any) -> int:
    number = 0
    for batch, wanted in zip(one, other, strict=True):
        number += 1
        assert batch.keys() == wanted.keys()
        for name, value in batch.items():
            assert torch.equal(value, wanted[name]), name
    return number


@pytest.mark.parametrize("settings", FORMS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_both_paths_give_the_same(prepared: dict[str, Any], settings: dict[str, Any], num_workers: int) -> None:
    fast, standard = builders(prepared, num_workers=num_workers, **settings)
    for split in ("train", "val") if num_workers == 0 else ("train",):
        ones, others = fast.build(split), standard.build(split)
        assert ones is not None
        assert others is not None
        assert len(ones) == len(others)
        for _ in range(2):
            assert same_batches(ones, others) == len(ones)
        ones.sampler.set_epoch(7)
        others.sampler.set_epoch(7)  # type: ignore[attr-defined]
        same_batches(ones, others)
        ones.close()


def test_without_a_store_lengths_are_found_by_decoding(raw: Any) -> None:
    config = raw.prepare(length_buckets=True)
    loaded = load_config(config)
    source = RawSource(loaded)
    dataset = StandardDataset(source, "train")
    rule = RaggedRule(max_length=9)
    known = raw_lengths(dataset, source.store, rule).tolist()
    shutil.rmtree(raw.store)
    alone = StandardDataset(RawSource(loaded), "train")
    assert raw_lengths(alone, None, rule).tolist() == known
    assert len(set(known)) > 1


def test_lengths_of_a_store_with_other_samples_are_not_taken(raw: Any) -> None:
    config = raw.prepare(length_buckets=True)
    store = StoreReader(config["preprocessed_data_dir"])
    raw.write_manifest(raw.names[1:])
    dataset = StandardDataset(RawSource(load_config(config)), "train")
    wanted = [
        max(sample["series"].shape[0], sample["text"].shape[0])
        for sample in map(dataset.__getitem__, range(len(dataset)))
    ]
    assert raw_lengths(dataset, store, RaggedRule()).tolist() == wanted


@pytest.mark.parametrize("path", [0, 1])
def test_a_sample_that_is_too_long_is_named(prepared: dict[str, Any], path: int) -> None:
    with pytest.raises(ConfigError, match=r"sample 's\d\d'.* max_tokens 3 alone"):
        builders(prepared, max_tokens=3)[path].build("train")


def test_notes() -> None:
    config = load_config({"manifest": "x.csv", "batch_size": 4, "max_tokens": 9, "sequence_crop": "random"})
    notes = ragged_notes(settings_for(config, "train"))
    assert any("batch_size: no effect" in note for note in notes)
    assert any("sequence_crop: random needs" in note for note in notes)
    assert ragged_notes(settings_for(load_config({"manifest": "x.csv"}), "train")) == []


def test_every_setting_reaches_the_rule() -> None:
    settings = {
        "manifest": "x.csv",
        "max_sequence_length": 7,
        "sequence_crop": "tail",
        "pad_to_multiple": 3,
        "use_dynamic_padding": False,
        "validation_ds": {"sequence_crop": "head"},
    }
    config = load_config(settings)
    assert ragged_rule(settings_for(config, "train")) == RaggedRule(7, "tail", 3, True)
    assert ragged_rule(settings_for(config, "val")) == RaggedRule(7, "head", 3, True)


def test_memory_is_reckoned_with_the_mean_batch(prepared: dict[str, Any]) -> None:
    store = StoreReader(prepared["preprocessed_data_dir"])
    positions = store.positions("train")
    plain = settings_for(load_config(prepared), "train")
    assert with_mean_batch(plain, store, positions) is plain
    by_tokens = settings_for(load_config({**prepared, "max_tokens": 120}), "train")
    assert 120 / 6 <= with_mean_batch(by_tokens, store, positions).batch_size <= 120 / 3


def test_ranks_share_the_standard_path_too(prepared: dict[str, Any]) -> None:
    _, standard = builders(prepared, max_tokens=12)
    loader = standard.build("train")
    assert loader is not None
    assert isinstance(loader.dataset, DrawnSamples)
    sampler = loader.sampler
    assert isinstance(sampler, PlanSampler)
    whole = sorted(at for drawn in sampler for at in drawn.indices)
    ranks = [PlanSampler(sampler._plan, 0, rank, 3) for rank in range(3)]
    assert len({len(rank) for rank in ranks}) == 1
    assert sorted({at for rank in ranks for drawn in rank for at in drawn.indices}) == whole


@pytest.mark.parametrize("settings", [{}, *FORMS])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_rank_gets_the_same_from_both_paths_with_its_repeats_marked(
    prepared: dict[str, Any], monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], num_workers: int
) -> None:
    num_repeats = 0
    for rank in range(3) if num_workers == 0 else (2,):
        for module in ("loader", "sampler"):
            monkeypatch.setattr(f"flatout.loader.{module}.rank_and_world", lambda *_, rank=rank: (rank, 3))
        fast, standard = builders(prepared, num_workers=num_workers, **settings)
        ones, others = fast.build("train"), standard.build("train")
        assert ones is not None
        assert others is not None
        same_batches(ones, others)
        num_repeats += sum(int((~batch["valid"]).sum()) for batch in others if "valid" in batch)
    assert num_repeats or settings, "14 samples are not a multiple of 3 ranks"
