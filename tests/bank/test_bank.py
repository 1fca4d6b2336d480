"""The bank serves each epoch the views it is due, swaps them whole, and resumes to the same ones."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bank.conftest import NUM_ITEMS
from tests.bank.transforms import failing, filtered, scaled

from flatout.bank import bank as banks
from flatout.bank import refresh as refreshes
from flatout.bank.bank import ViewBank
from flatout.bank.generation import Generation
from flatout.bank.place import generations
from flatout.config import load_config
from flatout.errors import ConfigError, FlatoutError, LoaderError, LoaderStateError
from flatout.loader import FastDataLoader, FastDataset
from flatout.store import StoreReader


def make_bank(store: Any, **settings: Any) -> ViewBank:
    given: dict[str, Any] = {"transform": scaled, "seed": 5, "num_workers": 0, "background": False}
    return ViewBank(store, **{**given, "view_cache_refresh_epochs": 3, **settings})


@pytest.fixture(scope="module")
def batch(store: StoreReader) -> dict[str, torch.Tensor]:
    samples = FastDataset(store).__getitems__(range(0, NUM_ITEMS, 2))
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def due(epoch: int, every: int, forced: int | None) -> int:
    """The epoch whose views are due, counted epoch by epoch."""
    drawn = 0
    for now in range(epoch + 1):
        if now % every == 0 or now == forced:
            drawn = now
    return drawn


@settings(max_examples=60)
@given(epoch=st.integers(0, 30), every=st.integers(1, 7), forced=st.one_of(st.none(), st.integers(0, 30)))
def test_which_views_an_epoch_is_served(store: StoreReader, epoch: int, every: int, forced: int | None) -> None:
    bank = ViewBank.__new__(ViewBank)
    bank.view_cache_refresh_epochs, bank._forced = every, forced
    assert bank.drawn_in(epoch) == due(epoch, every, forced)


def test_a_batch_gets_the_views_of_its_keys(store: StoreReader, batch: dict[str, torch.Tensor]) -> None:
    with make_bank(store) as bank:
        for epoch in (0, 2, 3, 8):
            found = bank(batch, epoch)
            own = bank._order.recipe.make(batch["signal"], batch["key"], epoch - epoch % 3)
            assert list(found) == [*batch, *bank.names]
            for name in bank.names:
                assert torch.equal(found[name], own[name])
            assert torch.equal(found["label"], batch["label"])


def test_a_resumed_run_sees_the_same_views(store: StoreReader, batch: dict[str, torch.Tensor]) -> None:
    with make_bank(store) as bank:
        bank.refresh_view_cache(0)
        bank.refresh_view_cache(4, force=True)
        expected = bank(batch, 5)["view1"]
        state = bank.state_dict()
    with make_bank(store) as resumed, make_bank(store) as other:
        resumed.load_state_dict(state)
        assert torch.equal(resumed(batch, 5)["view1"], expected)
        assert not torch.equal(other(batch, 5)["view1"], expected)  # the state is what tells of the force
        assert torch.equal(resumed(batch, 6)["view1"], other(batch, 6)["view1"])
        assert resumed.diversity.num_epochs == 4


def test_diversity_counts_what_was_seen(store: StoreReader, batch: dict[str, torch.Tensor]) -> None:
    with make_bank(store, num_views=1, num_substructures=0) as bank:
        assert bank.diversity.views_per_epoch == 0.0
        seen = {bank(batch, epoch)["view1"].numpy().tobytes() for epoch in range(7) for _ in range(2)}
        bank.refresh_view_cache(0)  # what was seen before is not counted twice
        told = bank.diversity
        assert told.distinct_views == len(seen) == 3
        assert (told.num_epochs, told.views_per_epoch, told.share) == (7, 3 / 7, 3 / 7)
        assert told.to_json()["distinct_views"] == 3
        assert "3 distinct views" in str(told)


@pytest.mark.parametrize("change", [{"seed": 6}, {"view_cache_refresh_epochs": 4}])
def test_a_state_of_other_settings_is_refused(store: StoreReader, change: dict[str, Any]) -> None:
    with make_bank(store) as bank:
        state = bank.state_dict()
    with make_bank(store, **change) as other, pytest.raises(LoaderStateError, match=next(iter(change))):
        other.load_state_dict(state)


def test_views_kept_in_a_folder_are_there_in_the_next_run(
    store: StoreReader, batch: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_bank(store, folder=tmp_path) as bank:
        expected = bank(batch, 4)["view1"]
    made = []
    make = banks.make_shared
    monkeypatch.setattr(banks, "make_shared", lambda *a, **k: made.append(make(*a, **k)))
    root = tmp_path / "epoch-000003" / "data_metadata.json"
    before = root.stat().st_mtime_ns
    with make_bank(store, folder=tmp_path) as bank:
        assert torch.equal(bank(batch, 5)["view1"], expected)
    assert made
    assert root.stat().st_mtime_ns == before  # nothing was made again


def test_memory_is_given_back(store: StoreReader, batch: dict[str, torch.Tensor]) -> None:
    bank = make_bank(store)
    folder, kept = bank.folder, bank(batch, 0)["view1"]
    bank(batch, 3)
    assert sorted(generations(folder)) == [3]
    bank.close()
    assert not folder.exists()
    with pytest.raises(LoaderError, match="closed"):
        bank(batch, 0)
    assert torch.isfinite(kept).all()
    dropped = make_bank(store)
    folder = dropped.folder
    del dropped
    gc.collect()
    assert not folder.exists()


def test_a_shared_folder_keeps_what_other_ranks_may_still_use(store: StoreReader, tmp_path: Path) -> None:
    with make_bank(store, folder=tmp_path) as bank:
        for epoch in (0, 3, 6):
            bank.refresh_view_cache(epoch)
        assert sorted(generations(tmp_path)) == [3, 6]


def test_a_refresh_that_fails_is_raised_and_the_views_before_still_serve(
    store: StoreReader, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_bank(store) as bank:
        expected = bank(batch, 2)["view1"]
        monkeypatch.setattr(banks, "make_shared", lambda *a, **k: (_ for _ in ()).throw(LoaderError("no")))
        with pytest.raises(LoaderError):
            bank(batch, 3)
        assert torch.equal(bank(batch, 2)["view1"], expected)


def test_samples_that_fail_are_named(store: StoreReader) -> None:
    with make_bank(store, transform=failing) as bank, pytest.raises(FlatoutError, match="above zero"):
        bank.refresh_view_cache(0)


def test_a_half_made_generation_is_never_opened(
    store: StoreReader, batch: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed after some shards; the next one completes them before anything is served."""
    monkeypatch.setattr("flatout.store.plan.MIN_SHARD_BYTES", 2048)
    calls = 0

    def dying(x: Any, rng: np.random.Generator) -> Any:
        nonlocal calls
        calls += 1
        if calls == NUM_ITEMS:  # half of two views each
            raise KeyboardInterrupt
        return scaled(x, rng)

    dying.__qualname__ = "dying"
    settings: dict[str, Any] = {"folder": tmp_path, "transform": dying}
    with make_bank(store, **settings) as bank:
        with pytest.raises(KeyboardInterrupt):
            bank.refresh_view_cache(0)
        assert list((tmp_path / "epoch-000000" / "shards").glob("*.h5"))
        assert bank._served is None
        found = bank(batch, 0)
        own = make_bank(store)
        assert torch.equal(found["view2"], own(batch, 0)["view2"])
        own.close()


def test_threads_see_one_generation_at_a_time(store: StoreReader, batch: dict[str, torch.Tensor]) -> None:
    with make_bank(store) as bank:
        expected = {epoch: bank._order.recipe.make(batch["signal"], batch["key"], epoch) for epoch in (0, 3)}
        wrong: list[int] = []

        def read(epoch: int) -> None:
            for _ in range(5):
                found = bank(batch, epoch)
                if not all(torch.equal(found[name], expected[epoch][name]) for name in bank.names):
                    wrong.append(epoch)

        threads = [threading.Thread(target=read, args=(epoch,)) for epoch in (0, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_the_next_views_are_made_behind(
    store: StoreReader, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the real process, with a function that only this program has."""

    def local(x: Any, rng: np.random.Generator) -> Any:
        return filtered(x, rng)

    monkeypatch.setattr(refreshes, "yield_to_others", lambda pid: None)  # other tests may keep all cores busy
    with make_bank(store, transform=local, background=True) as bank:
        bank(batch, 0)
        (behind,) = bank._running
        assert behind.epoch == 3
        behind._thread.join()
        monkeypatch.setattr(banks, "make_shared", None)  # nobody may make them here
        found = bank(batch, 3)
        own = bank._order.recipe.make(batch["signal"], batch["key"], 3)
        assert all(torch.equal(found[name], own[name]) for name in bank.names)
        assert bank._running[0].epoch == 6
    assert not bank._running
    assert not bank.folder.exists()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such priority")
def test_a_process_that_yields_has_the_lowest_priority() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        refreshes.yield_to_others(child.pid)
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == refreshes.LOWEST_PRIORITY
        assert os.sched_getscheduler(0) != os.SCHED_IDLE
    finally:
        child.communicate(b"\n")


def test_a_process_behind_that_is_killed_costs_only_its_time(
    store: StoreReader, batch: dict[str, torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    with make_bank(store, background=True) as bank:
        bank(batch, 0)
        os.kill(bank._running[0]._worker._process.pid, signal.SIGKILL)
        found = bank(batch, 3)
        assert "the process that made the views of epoch 3 died" in caplog.text
        own = bank._order.recipe.make(batch["signal"], batch["key"], 3)
        assert torch.equal(found["view1"], own["view1"])


def test_a_slow_process_behind_is_taken_over(
    store: StoreReader, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Never(refreshes.Refresh):
        def __init__(self, order: Any, folder: Path) -> None:
            self.epoch, self.stopped = order.epoch, False

        def wait(self, timeout_s: float) -> bool:
            return False

        def stop(self) -> None:
            self.stopped = True

    monkeypatch.setattr(banks, "Refresh", Never)
    with make_bank(store, background=True) as bank:
        bank(batch, 0)
        slow = bank._running[0]
        bank(batch, 1)
        bank.refresh_view_cache(1, force=True)
        assert bank._running == [slow]  # what it makes is still due
        found = bank(batch, 3)
        assert slow.stopped  # type: ignore[attr-defined]
        own = bank._order.recipe.make(batch["signal"], batch["key"], 3)
        assert torch.equal(found["view1"], own["view1"])


def test_views_that_another_rank_makes_are_waited_for(
    store: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flatout.store.lock import locked

    with make_bank(store) as bank:
        order = bank._order
    held = locked(tmp_path / "epoch-000000")
    held.__enter__()
    waited = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        held.__exit__(None, None, None)

    monkeypatch.setattr(refreshes.time, "sleep", wait)
    refreshes.make_shared(order, tmp_path / "epoch-000000", num_workers=0)
    assert waited == [refreshes.LOCKED_S]
    assert len(Generation(tmp_path / "epoch-000000", 0)) == NUM_ITEMS


def test_impossible_settings(store: StoreReader) -> None:
    with pytest.raises(ConfigError, match="view_cache_refresh_epochs"):
        make_bank(store, view_cache_refresh_epochs=0)
    with pytest.raises(ConfigError, match="no field"):
        make_bank(store, field="sound")
    with pytest.raises(ConfigError, match="split"):
        make_bank(store, split="trian")


def test_seed_and_interval_come_from_whoever_has_them(store: StoreReader) -> None:
    def found(given: Any, **settings: Any) -> tuple[int, int]:
        with ViewBank(given, **settings) as bank:
            return bank._order.recipe.seed, bank.view_cache_refresh_epochs

    config = load_config({"seed": 8, "view_cache_refresh_epochs": 7})
    assert found(store) == (0, 5)
    assert found(store, config=config) == (8, 7)
    assert found(FastDataset(store, view_cache_refresh_epochs=2), config=config) == (8, 2)
    assert found(FastDataset(store), config=config, view_cache_refresh_epochs=1, seed=3) == (3, 1)
    with ViewBank(FastDataset(store, "train")) as bank:
        assert bank._order.dataset.split == "train"


def test_without_a_transform_the_config_decides(store: StoreReader, batch: dict[str, torch.Tensor]) -> None:
    quiet = {
        name: {"p": 0.0}
        for name in ("time_shift", "gaussian_noise", "time_mask", "frequency_mask", "time_stretch")
    }
    config = {**quiet, "amplitude_scale": {"p": 1.0, "range": [3.0, 3.0]}}
    with make_bank(store, transform=None, config=config) as bank:
        torch.testing.assert_close(bank(batch, 0)["view2"], 3 * batch["signal"])


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_loader_with_a_bank_resumes_to_the_same_views(store: StoreReader, stop: int) -> None:
    """Three batches an epoch, new views every second epoch."""

    def start(bank: ViewBank) -> FastDataLoader:
        return FastDataLoader(store, 16, shuffle=True, seed=1, num_workers=0, augment=bank)

    every = {"view_cache_refresh_epochs": 2, "num_substructures": 0}
    with make_bank(store, **every) as bank:
        loader, unbroken, state = start(bank), [], {}
        for _ in range(4):
            for batch in loader:
                unbroken.append(batch["view2"].clone())
                if len(unbroken) == stop:
                    state = loader.state_dict()
    assert len(unbroken) == 12
    with make_bank(store, **every) as bank:
        loader = start(bank)
        loader.load_state_dict(state)
        rest = []
        while len(rest) < 12 - stop:
            rest += [batch["view2"].clone() for batch in loader]
    assert all(torch.equal(one, other) for one, other in zip(rest, unbroken[stop:], strict=True))
