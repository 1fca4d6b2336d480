"""Batches finished one ahead: the same as without, in any use of the loader, and really ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.test_run import is_equal, weights_of
from tests.train.tiny import NUM_BATCHES, NUM_TRAIN, SaveEach, Tiny

from flatout.bank import BankViews
from flatout.errors import LoaderError
from flatout.loader import FastDataLoader
from flatout.loader.transfer import Augment, Batch, Transfer
from flatout.train import fit, run
from flatout.train.ahead import AheadLoader
from flatout.train.data import RunData
from flatout.train.loaders import RunLoaders
from flatout.train.task import TaskData
from flatout.train.waits import RunLoader
from flatout.train.weights import read_weights

Make = Callable[..., dict[str, Any]]
WAIT_S = 30.0


def add_epoch(batch: Batch, epoch: int) -> Batch:
    return {**batch, "x": batch["x"] + epoch}


def pair(store: Path, finish: Augment = add_epoch) -> tuple[FastDataLoader, AheadLoader]:
    """A loader that finishes its batches itself, and one ahead over another."""
    options: dict[str, Any] = {"split": "train", "shuffle": True, "num_workers": 0}
    plain = FastDataLoader(store, 4, augment=add_epoch, **options)
    return plain, AheadLoader(FastDataLoader(store, 4, **options), finish, Transfer(None))


@pytest.fixture
def store(manifest: Path) -> Path:
    return manifest.parent / "store"


def same(one: Batch, other: Batch) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


Step = tuple[str, int]


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(1, 6)),
            st.tuples(st.just("iter"), st.just(0)),
            st.tuples(st.just("epoch"), st.integers(0, 3)),
            st.tuples(st.just("resume"), st.just(0)),
        ),
        max_size=12,
    )
)
def test_whatever_is_done_it_is_the_plain_loader(manifest: Path, steps: list[Step]) -> None:
    plain, ahead = pair(manifest.parent / "store")
    passes = [iter(plain), iter(ahead)]
    for what, number in steps:
        if what == "iter":
            passes = [iter(plain), iter(ahead)]
        elif what == "epoch":
            plain.sampler.set_epoch(number)
            ahead.sampler.set_epoch(number)
            passes = [iter(plain), iter(ahead)]
        elif what == "resume":
            state = ahead.state_dict()
            plain, ahead = pair(manifest.parent / "store")
            plain.load_state_dict(state)
            ahead.load_state_dict(state)
            passes = [iter(plain), iter(ahead)]
        for _ in range(number if what == "take" else 0):
            wanted, got = (next(each, None) for each in passes)
            assert (wanted is None) == (got is None)
            if wanted is not None:
                assert got is not None
                assert same(wanted, got)
        assert ahead.state_dict() == plain.state_dict()
    ahead.close()
    plain.close()


def test_the_next_batch_is_made_while_the_last_is_used(store: Path) -> None:
    called: list[int] = []
    num_threads: list[int] = []
    second = threading.Event()

    def finish(batch: Batch, epoch: int) -> Batch:
        called.append(threading.get_ident())
        num_threads.append(torch.get_num_threads())
        if len(called) == 2:
            second.set()
        return batch

    torch.set_num_threads(2)
    _, ahead = pair(store, finish)
    assert torch.get_num_threads() == 2
    stream = iter(ahead)
    assert not called  # nothing before the first `next`
    next(stream)
    assert second.wait(WAIT_S)  # nobody has asked for it
    assert len(called) == 2
    assert set(called) != {threading.get_ident()}
    assert num_threads == [1, 1]  # no team of threads beside the training's own
    ahead.close()
    assert len(called) == 2


def test_a_failure_is_raised_at_its_batch_and_again(store: Path) -> None:
    num_called = 0

    def finish(batch: Batch, epoch: int) -> Batch:
        nonlocal num_called
        num_called += 1
        if num_called == 3:
            raise ValueError("the third")
        return batch

    _, ahead = pair(store, finish)
    stream = iter(ahead)
    assert [len(next(stream)["key"]) for _ in range(2)] == [4, 4]
    state = ahead.state_dict()
    for _ in range(2):
        with pytest.raises(ValueError, match="the third"):
            next(stream)
    assert ahead.state_dict() == state
    ahead.close()


def test_an_older_pass_does_not_end_in_silence(store: Path) -> None:
    _, ahead = pair(store)
    first = iter(ahead)
    next(first)
    next(iter(ahead))
    with pytest.raises(LoaderError, match="newer pass"):
        next(first)
    ahead.close()


class Marked(Transfer):
    """Knows whether its own stream is the one in use."""

    is_inside = False

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        self.is_inside = True
        yield
        self.is_inside = False


def test_what_the_loader_does_on_the_device_is_done_before_what_follows(store: Path) -> None:
    transfer, seen = Marked(None), []
    options: dict[str, Any] = {"split": "train", "num_workers": 0}
    inner = FastDataLoader(
        store, 4, augment=lambda batch, _: (seen.append(transfer.is_inside), batch)[1], **options
    )
    ahead = AheadLoader(inner, lambda batch, _: (seen.append(transfer.is_inside), batch)[1], transfer)
    next(iter(ahead))
    ahead.close()
    assert len(seen) >= 4
    assert all(seen)


class Views(BankViews):
    """Only says that it is closed."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        torch.nn.Module.__init__(self)
        self._on_close = on_close

    def close(self) -> None:
        self._on_close()


def test_views_are_closed_after_the_last_batch_under_way(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_second, is_asked, done = threading.Event(), threading.Event(), []

    def finish(batch: Batch, epoch: int) -> Batch:
        if done:
            is_second.set()
            assert is_asked.wait(WAIT_S)
        done.append("made")
        return batch

    def on_close() -> None:
        done.append("closed")
        is_asked.set()

    close = AheadLoader.close
    monkeypatch.setattr(AheadLoader, "close", lambda self: (is_asked.set(), close(self))[1])
    loader = RunLoader(FastDataLoader(store, 4, split="train", num_workers=0))
    loader.finish_ahead(finish, torch.device("cpu"))
    data = RunData(RunLoaders({"train": loader}, TaskData({}, {}), is_fast=True), Views(on_close))
    next(iter(loader))
    assert is_second.wait(WAIT_S)
    data.close()
    assert done == ["made", "made", "closed"]


@pytest.fixture
def runs_ahead(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs finish batches ahead, as on a GPU; the names of the threads that did."""
    names: list[str] = []
    finish = run.RunData.finish

    def noted(self: Any, batch: Batch, epoch: int) -> Batch:
        names.append(threading.current_thread().name)
        return finish(self, batch, epoch)

    monkeypatch.setattr(run.RunData, "finish", noted)
    monkeypatch.setattr(run, "leaves_processor_free", lambda device: True)
    return names


def test_a_run_has_the_same_weights(make_config: Make, runs_ahead: list[str]) -> None:
    ahead = weights_of(make_config())
    seen = Tiny.made.seen
    assert len(runs_ahead) >= 2 * NUM_BATCHES
    assert all(name.startswith("flatout-ahead") for name in runs_ahead)
    runs_ahead.clear()
    standard = weights_of(make_config(use_fast_loader=False, use_gpu_augment=True))
    assert not any(name.startswith("flatout-ahead") for name in runs_ahead)
    assert Tiny.made.seen == seen
    assert is_equal(ahead, standard)
    assert sum(map(len, seen)) == 2 * NUM_TRAIN


def test_a_run_is_resumed_anywhere(make_config: Make, tmp_path: Path, runs_ahead: list[str]) -> None:
    whole = fit(make_config(), callbacks=[SaveEach(tmp_path)])
    seen = Tiny.made.seen
    assert whole.weights is not None
    for stop in (1, NUM_BATCHES - 1, NUM_BATCHES, NUM_BATCHES + 2):
        rest = fit(make_config(), resume=tmp_path / f"batch{stop}.ckpt")
        assert Tiny.made.seen == seen[stop:], stop
        assert rest.weights is not None
        assert is_equal(read_weights(rest.weights), read_weights(whole.weights)), stop


def test_epochs_that_are_cut_short(make_config: Make, runs_ahead: list[str]) -> None:
    cut = {"trainer_options": {"limit_train_batches": 2}}
    ahead = weights_of(make_config(epochs=3), **cut)
    seen = Tiny.made.seen
    standard = weights_of(make_config(epochs=3, use_fast_loader=False, use_gpu_augment=True), **cut)
    assert Tiny.made.seen == seen
    assert is_equal(ahead, standard)
