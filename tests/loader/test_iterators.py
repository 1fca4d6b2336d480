"""Iterators of one loader: each has its own cursor, in any company, and none works before its first batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.epochs import begun, epoch_keys, has_lane, keys_of, loader_of, producers

from flatout.loader.fetch import Fetcher
from flatout.loader.order import Shuffled
from flatout.store import StoreReader

BATCH = 40
NUM_BATCHES = 3


@dataclass
class Model:
    """What the loader should do, in a few numbers: (epoch, batch) pairs."""

    next: tuple[int, int] = (0, 0)
    at: tuple[int, int] = (0, 0)
    cursors: list[tuple[int, int] | None] = field(default_factory=list)

    def take(self, number: int) -> tuple[int, int] | None:
        """Epoch and batch that an iterator gives next; None: its epoch is over."""
        if self.cursors[number] is None:
            self.cursors[number] = self.at = self.next
            self.next = (self.next[0] + 1, 0)
        epoch, batch = self.cursors[number] or (0, 0)
        if batch == NUM_BATCHES:
            return None
        self.cursors[number] = self.at = (epoch, batch + 1)
        return epoch, batch

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.next[0]:
            self.next = self.at = (epoch, 0)

    def load(self, saved: tuple[int, int]) -> None:
        self.next = self.at = (saved[0] + 1, 0) if saved[1] == NUM_BATCHES else saved


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["next", "next", "next", "drop"]), st.integers(0, 3)),
        st.tuples(st.sampled_from(["iter", "save", "load"]), st.just(0)),
        st.tuples(st.just("set_epoch"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 2))
@settings(max_examples=40)
def test_any_company_of_iterators_follows_the_model(
    any_store: StoreReader, steps: list[tuple[str, int]], num_workers: int
) -> None:
    loader, model = begun(any_store, BATCH, num_workers=num_workers), Model()
    streams: list[Any] = []
    saved, saved_at = loader.state_dict(), model.at
    for what, number in steps:
        if what == "iter":
            streams.append(iter(loader))
            model.cursors.append(None)
        elif what == "set_epoch":
            loader.set_epoch(number)
            model.set_epoch(number)
        elif what == "save":
            saved, saved_at = json.loads(json.dumps(loader.state_dict())), model.at
            assert (saved["epoch"], saved["samples"]) == (saved_at[0], min(saved_at[1] * BATCH, len(any_store)))
        elif what == "load":
            loader.load_state_dict(saved)
            model.load(saved_at)
        elif number < len(streams) and what == "drop":
            del streams[number], model.cursors[number]
        elif number < len(streams):
            check_next(any_store, streams[number], model.take(number))
    streams.clear()
    loader.close()


def check_next(store: StoreReader, stream: Any, wanted: tuple[int, int] | None) -> None:
    batch = next(stream, None)
    if wanted is None:
        assert batch is None
        return
    assert batch is not None
    epoch, number = wanted
    assert batch["key"].tolist() == epoch_keys(store, epoch)[number * BATCH : (number + 1) * BATCH]


@pytest.mark.parametrize("stop", [1, 2])
def test_after_a_break_comes_the_next_epoch_whole(any_store: StoreReader, stop: int) -> None:
    loader = begun(any_store, BATCH, num_workers=2)
    for epoch in range(4):
        found = []
        for batch in loader:
            found.append(batch)
            if len(found) == stop and epoch % 2 == 0:
                break
        wanted = epoch_keys(any_store, epoch)
        assert keys_of(found) == (wanted[: stop * BATCH] if epoch % 2 == 0 else wanted)
    assert has_lane(loader) == ("series" not in any_store.fields)
    loader.close()


def test_zip_of_a_loader_with_itself_pairs_two_epochs(any_store: StoreReader) -> None:
    loader = begun(any_store, BATCH, num_workers=2)
    for first in (0, 2):
        pairs = list(zip(loader, loader, strict=True))
        assert keys_of(pair[0] for pair in pairs) == epoch_keys(any_store, first)
        assert keys_of(pair[1] for pair in pairs) == epoch_keys(any_store, first + 1)
    assert has_lane(loader) == ("series" not in any_store.fields)
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_made_ahead_for_another_epoch_are_dropped(any_store: StoreReader, num_workers: int) -> None:
    """After a whole epoch the next one is on its way, but another may be asked for."""
    loader = begun(any_store, BATCH, num_workers=num_workers)
    for epoch in (0, 5, 6, 2):
        loader.set_epoch(epoch)
        assert keys_of(loader) == epoch_keys(any_store, epoch)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "samples": BATCH})
    assert keys_of(loader) == epoch_keys(any_store, 3)[BATCH:]
    loader.close()


def test_an_exhausted_iterator_stays_exhausted(any_store: StoreReader) -> None:
    loader = begun(any_store, BATCH)
    stream = iter(loader)
    assert len(list(stream)) == NUM_BATCHES
    assert next(stream, None) is None
    assert next(iter(loader))["key"].tolist() == epoch_keys(any_store, 1)[:BATCH]
    assert next(stream, None) is None


def test_nothing_is_done_before_the_first_next(store: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    stretch, fetch = Shuffled.stretch, Fetcher.fetch_run
    monkeypatch.setattr(Shuffled, "stretch", lambda *args: (done.append("order"), stretch(*args))[1])
    monkeypatch.setattr(Fetcher, "fetch_run", lambda *args: (done.append("fetch"), fetch(*args))[1])
    before = producers()
    loader = loader_of(store, BATCH, num_workers=2)
    streams = [iter(loader) for _ in range(3)]
    loader.set_epoch(1)
    loader.load_state_dict(loader.state_dict())
    assert len(loader) == NUM_BATCHES
    assert not done
    assert producers() == before
    next(streams[1])
    assert {"order", "fetch"} == set(done)
    streams.clear()


def test_producers_run_on_into_the_next_epoch(any_store: StoreReader) -> None:
    """Also where nobody asks for the batch after the last, as Lightning never does."""
    loader = begun(any_store, BATCH, num_workers=2)
    threads = []
    for epoch in range(4):
        stream = iter(loader)
        found = [next(stream) for _ in range(len(loader))]
        assert keys_of(found) == epoch_keys(any_store, epoch)
        threads.append(producers())
        del stream
    assert len({frozenset(found) for found in threads}) == 1
    loader.close()


def test_no_thread_starts_an_epoch_that_has_no_batch(store: StoreReader) -> None:
    loader = loader_of(store, 200, num_workers=2, drop_last=True)
    before = producers()
    assert len(loader) == 0
    assert list(loader) == []
    assert producers() == before
