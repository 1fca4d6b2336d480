"""Trials on small data: both paths, copies in other encodings, caches, the task's step, and what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.tiny import NUM_TRAIN, config_of, prepare, write_rows

from flatout.config import load_config
from flatout.doctor.tune import data as tune_data
from flatout.doctor.tune import room, variant
from flatout.doctor.tune import time as tune_time
from flatout.doctor.tune.bed import Bed
from flatout.doctor.tune.data import TuneData
from flatout.doctor.tune.sample import SampleStores, forget_pages
from flatout.doctor.tune.setting import ENCODINGS, Setting
from flatout.doctor.tune.step import TrainStep, nothing
from flatout.doctor.tune.time import time_loader
from flatout.errors import ConfigError, LoaderError
from flatout.loader import FastDataLoader
from flatout.loader.machine import describe_machine
from flatout.store import DataPreprocessor, StoreReader

S = 0.02


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_rows(tmp_path_factory.mktemp("tune") / "raw")
    prepare(config_of(path, path.parent))
    return path


@pytest.fixture
def make_bed(manifest: Path, tmp_path: Path) -> Callable[..., Bed]:
    def make(**settings: Any) -> Bed:
        config = load_config(config_of(manifest, tmp_path, **settings), environ={})
        return Bed(config, tmp_path)

    return make


class Noise:
    """Samples large enough to be encoded."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        return {"x": random.random((2, 300), np.float32), "y": at}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise") / "store"
    fields = {"x": {"kind": "transform", "compression": "zstd"}}
    DataPreprocessor.from_dataset(Noise(), folder, num_workers=0, fields=fields).run()
    return folder


def test_a_store(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(num_workers=1)
    facts = bed.facts()
    assert facts.is_fast
    assert facts.consumer == "the training step"
    assert facts.start == Setting(1, 4, 4)
    assert (facts.num_samples, facts.num_all, facts.sample_bytes) == (NUM_TRAIN, 22, 28)
    assert facts.stored_bytes > 0
    service = bed.probe(S)
    assert service.make_s > 0
    assert service.step_s > 0
    for setting in (facts.start, facts.start.changed(num_workers=0), facts.start.changed(batch_size=7)):
        found = bed.run(setting, S)
        assert found.samples_per_s > 0
        assert found.num_batches >= 4
        assert 0 <= found.wait_share <= 1
        assert found.memory_bytes > 1 << 20


def test_raw_files(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(use_fast_loader=False, num_workers=1)
    facts = bed.facts()
    assert not facts.is_fast
    assert facts.start == Setting(1, 4, 4)
    assert any("makes a store of them" in note for note in facts.notes)
    assert bed.probe(S).hand_s > 0
    in_memory = bed.run(facts.start.changed(num_workers=0, cache="memory"), S)
    assert in_memory.samples_per_s > 0
    assert bed.run(facts.start, S).cpu_share < 2


@pytest.mark.parametrize("is_kept", [True, False])
def test_workers_live_as_long_as_in_a_training(make_bed: Callable[..., Bed], is_kept: bool) -> None:
    data = make_bed(use_fast_loader=False, num_workers=1, persistent_workers=is_kept)._data
    for cache in ("none", "memory", "memory"):  # the second time over samples that are there
        loader: Any = data.loader(data.start.changed(cache=cache), on_sample=False)
        assert (loader.num_workers, loader.persistent_workers) == (1, is_kept)


def test_samples_in_memory_pay_for_being_decoded(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(use_fast_loader=False, epochs=2)
    data = bed._data
    data.make_sample_s = 0.5
    kept = bed.facts().start.changed(cache="memory")
    assert data.fill_s(kept) == pytest.approx(0.5 * 22 / (NUM_TRAIN * 2))
    assert data.fill_s(bed.facts().start) == 0.0
    assert bed.run(kept, S).samples_per_s < 1 / data.fill_s(kept)


def test_a_large_split_is_tried_in_part(make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "MOST_FILL_S", 1.0)
    data = make_bed(use_fast_loader=False)._data
    data.make_sample_s = 0.1
    setting = replace(data.start, cache="memory", batch_size=1)
    loader = data.loader(setting, on_sample=False)
    assert 0 < len(loader.dataset) < NUM_TRAIN  # type: ignore[union-attr,arg-type]
    again = data.loader(setting.changed(batch_size=2), on_sample=False)
    assert again.dataset is loader.dataset  # type: ignore[union-attr]
    assert len(next(iter(again))["key"]) == 2


def test_a_stale_store_is_not_tuned(make_bed: Callable[..., Bed]) -> None:
    other = {"x": {"kind": "array", "dtype": "float64"}, "y": {"kind": "scalar"}}
    facts = make_bed(fields=other).facts()
    assert not facts.is_fast
    assert any("was made with other settings" in note for note in facts.notes)
    with pytest.raises(LoaderError, match="other settings"):
        make_bed(fields=other, use_fast_loader=True)


def test_no_train_split(tmp_path: Path) -> None:
    store = tmp_path / "store"
    DataPreprocessor.from_dataset(Noise(), store, num_workers=0, splits={"ratios": {"val": 1.0}}).run()
    with pytest.raises(ConfigError, match="no train split to tune; there are: val"):
        Bed(load_config({"preprocessed_data_dir": str(store)}, environ={}), tmp_path)


def test_a_step_that_needs_a_trainer_is_left_out(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, batch: Any) -> Any:
        raise RuntimeError("no trainer")

    monkeypatch.setattr(TrainStep, "__call__", fail)
    facts = make_bed().facts()
    assert facts.consumer == "nothing"
    assert any("cannot be run outside a training (RuntimeError: no trainer)" in note for note in facts.notes)


def test_a_step_trains(manifest: Path, tmp_path: Path) -> None:
    from tests.train.tiny import Tiny

    bed = Bed(load_config(config_of(manifest, tmp_path), environ={}), tmp_path)
    before = [parameter.detach().clone() for parameter in Tiny.made.parameters()]
    bed.run(bed.facts().start, S)
    after = list(Tiny.made.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_copies_hold_the_same_samples_in_another_form(noise: Path, tmp_path: Path) -> None:
    store = StoreReader(noise)
    positions = store.positions("train")
    copies = SampleStores(store, positions, ("x",), tmp_path, sample_bytes=2400, batch_size=4)
    allowed = {"float16": 1e-3, "float16+zstd": 1e-3, "uint8": 4e-3}
    for encoding, form in ENCODINGS.items():
        copy = copies.of(encoding)
        assert (copy.fields["x"].encoding, copy.fields["x"].compression) == tuple(form.values())
        for number, position in enumerate(positions[: len(copy)].tolist()):
            np.testing.assert_allclose(
                copy.read(number)["x"], store.read(position)["x"], atol=allowed.get(encoding, 0.0)
            )
            assert copy.read(number)["y"] == store.read(position)["y"]
    assert copies.of("as it is").fields["x"].compression == "zstd"
    assert copies.of("uint8") is copies.of("uint8")
    forget_pages(copies.of("uint8"))


def test_encodings_and_the_cache_of_a_store(noise: Path, tmp_path: Path) -> None:
    config = {"preprocessed_data_dir": str(noise), "batch_size": 4, "num_workers": 0}
    config["cache_config"] = {"cache_size": 3}  # type: ignore[assignment]
    bed = Bed(load_config(config, environ={}), tmp_path)
    facts = bed.facts()
    assert facts.encodable == ("x",)
    assert facts.is_compressed
    assert facts.cache_size == 3
    bed.probe(S)
    bed.get_ready(facts.start.changed(encoding="float16"), on_sample=True)
    assert list(tmp_path.rglob("copy*"))  # before any stretch
    for encoding in ("as it is", "float16"):
        assert bed.run(facts.start.changed(encoding=encoding), S, on_sample=True).samples_per_s > 0
    kept = facts.start.changed(cache="decoded")
    assert bed.run(kept, S).samples_per_s > 0
    loader = bed._data.loader(kept, on_sample=False)
    assert isinstance(loader, FastDataLoader)
    assert loader.cache_stats.num_arrays == facts.num_samples
    bed._data.make_sample_s = 1e6
    with pytest.raises(LoaderError, match="too long for a trial"):
        bed._data.loader(kept.changed(batch_size=2), on_sample=False)


def test_a_cold_copy_is_read_anew(noise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[StoreReader] = []
    monkeypatch.setattr(tune_data, "forget_pages", forgotten.append)
    config = load_config({"preprocessed_data_dir": str(noise), "batch_size": 4}, environ={})
    for free_bytes, count in ((1 << 40, 0), (1 << 27, 1)):
        data = TuneData(
            config, replace(describe_machine(), free_bytes=free_bytes), tmp_path / str(free_bytes), ""
        )
        if count:
            monkeypatch.setattr(data, "_is_cold", lambda copy: True)
        data.loader(data.start.changed(num_workers=0), on_sample=True)
        assert len(forgotten) == count


def test_a_trial_stops_before_the_memory_does(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = FastDataLoader(manifest.parent / "store", 4, num_workers=0)
    monkeypatch.setattr(room, "RESERVE", 2.0)
    monkeypatch.setattr(tune_time, "LOOK_S", 0.0)
    with pytest.raises(MemoryError, match="of the machine's memory is left"):
        time_loader(loader, S, nothing)


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    room.check_free()
    full = replace(describe_machine(), memory_bytes=1000, free_bytes=49)  # whatever the machine around it has
    monkeypatch.setattr(room, "describe_machine", lambda look_for_gpu: full)
    with pytest.raises(MemoryError, match="less than 5%"):
        room.check_free()
    room.check_free(0.04)


def test_an_epoch_without_a_batch_is_told(manifest: Path) -> None:
    loader = FastDataLoader(manifest.parent / "store", 1000, num_workers=0, drop_last=True)
    with pytest.raises(ValueError, match="an epoch has no batch"):
        time_loader(loader, S, nothing)


class Clock:
    """The module `time`, whose time passes only where it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    thread_time = perf_counter


class Waves:
    """A loader whose workers all begin and end a batch together: that many come at once, each second."""

    def __init__(self, num_workers: int, clock: Clock, wave_s: float = 1.0) -> None:
        self.num_workers = num_workers
        self._clock = clock
        self._wave_s = wave_s

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        for number in range(len(self)):
            self._clock.now_s += self._wave_s * (number % max(1, self.num_workers) == 0)
            yield {"key": [0, 1]}


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4, 8])
def test_batches_that_came_with_the_first_one_do_not_count(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(tune_time, "time", clock)
    monkeypatch.setattr(tune_time, "check_free", lambda: None)
    found = time_loader(Waves(num_workers, clock), 3.0, nothing)
    assert found.num_batches / found.wall_s == pytest.approx(max(1, num_workers))
    assert found.num_samples == 2 * found.num_batches
    assert found.first_s == 1.0


def test_a_stretch_of_very_slow_batches_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(tune_time, "time", clock)
    monkeypatch.setattr(tune_time, "check_free", lambda: None)
    found = time_loader(Waves(1, clock, wave_s=100.0), 1.0, nothing)
    assert (found.num_batches, found.wall_s) == (1, 100.0)


def test_the_cache_holds_as_much_of_a_copy_as_of_the_store(noise: Path, tmp_path: Path) -> None:
    """All of a small copy would be in it, and compression would seem to cost nothing."""
    config = {"preprocessed_data_dir": str(noise), "batch_size": 4, "num_workers": 0}
    config["cache_config"] = {"cache_size": 20}  # type: ignore[assignment]
    data = Bed(load_config(config, environ={}), tmp_path)._data
    assert data.store is not None
    whole = len(data.store)
    loader = data.loader(data.start.changed(encoding="zstd"), on_sample=True)
    assert isinstance(loader, FastDataLoader)
    for _ in loader:
        pass
    kept, copy = loader.cache_stats.num_arrays, len(loader.store)
    assert kept == 20 * copy // whole < copy


def test_of_several_probes_the_fastest_counts(
    make_bed: Callable[..., Bed], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed = make_bed(num_workers=0)
    real, count = bed._time, iter(range(99))

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        timed = real(*args, **kwargs)
        return replace(timed, wall_s=1000.0) if next(count) == 0 else timed

    monkeypatch.setattr(bed, "_time", disturbed)
    assert bed.probe(S).make_s < 1.0
    assert bed._data.make_sample_s < 1.0


def test_what_is_kept_is_shared_and_goes_where_there_is_no_room(noise: Path, tmp_path: Path) -> None:
    """A cache for each number of workers would take many times the memory that one does."""
    config = load_config({"preprocessed_data_dir": str(noise), "batch_size": 4, "num_workers": 0}, environ={})
    bed = Bed(config, tmp_path)
    kept, data = bed.facts().start.changed(cache="decoded"), bed._data
    one: Any = data.loader(kept, on_sample=False)
    other: Any = data.loader(kept.changed(num_workers=2, prefetch_factor=3), on_sample=False)
    assert other is one
    assert one.prefetching == (2, 3)
    assert data.loader(kept, on_sample=False).prefetching[0] == 0  # type: ignore[union-attr]
    data.loader(kept.changed(batch_size=2), on_sample=False)
    assert len(data._kept) == 2
    whole = data.sample_bytes * data.num_samples
    data.machine = replace(data.machine, free_bytes=5 * whole)  # a quarter of it holds one
    data.loader(kept.changed(batch_size=8), on_sample=False)
    assert [setting.batch_size for setting, _ in data._kept] == [8]


def test_the_probe_knows_what_a_sample_costs_that_is_kept_by_now(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(use_fast_loader=False, cache_in_memory=True)
    assert bed.facts().start.cache == "memory"
    asked: list[str] = []
    real = bed._data.loader
    bed._data.loader = lambda setting, **kind: asked.append(setting.cache) or real(setting, **kind)  # type: ignore
    bed.probe(S)
    assert set(asked) == {"none"}
