"""Transfer: CUDA's side stream and events with small stand-ins; other devices for real."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.loader.epochs import loader_of

from flatout.loader.transfer import Transfer
from flatout.store import StoreReader


class FakeStream:
    def __init__(self, device: Any = None) -> None:
        self.waits_for: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waits_for.append(event)


class FakeEvent:
    def __init__(self) -> None:
        self.stream: FakeStream | None = None
        self.num_copies = -1

    def record(self, stream: FakeStream) -> None:
        self.stream = stream
        self.num_copies = len(CUDA.copies)


class FakeTensor:
    """A host tensor whose copy remembers on which stream, and how, it was made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made_on: FakeStream | None = None
        self.used_on: list[FakeStream] = []

    def to(self, device: torch.device, non_blocking: bool = False) -> FakeTensor:
        assert device.type == "cuda"
        assert non_blocking
        moved = FakeTensor(self.name)
        moved.made_on = CUDA.current[-1]
        CUDA.copies.append(moved)
        return moved

    def record_stream(self, stream: FakeStream) -> None:
        self.used_on.append(stream)


class FakeCuda:
    """What stands in for torch.cuda."""

    def __init__(self) -> None:
        self.current = [FakeStream()]
        self.copies: list[FakeTensor] = []
        self.streams: list[FakeStream] = []
        self.events: list[FakeEvent] = []

    def new_stream(self, device: Any = None) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def new_event(self) -> FakeEvent:
        self.events.append(FakeEvent())
        return self.events[-1]

    @contextmanager
    def use(self, stream: FakeStream) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()


CUDA = FakeCuda()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    CUDA.__init__()  # type: ignore[misc]
    monkeypatch.setattr(torch.cuda, "Stream", CUDA.new_stream)
    monkeypatch.setattr(torch.cuda, "Event", CUDA.new_event)
    monkeypatch.setattr(torch.cuda, "stream", CUDA.use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: CUDA.current[-1])
    return CUDA


def host_batch() -> dict[str, Any]:
    return {"image": FakeTensor("image"), "label": FakeTensor("label")}


def test_copies_run_on_a_side_stream_and_an_event_follows_them(cuda: FakeCuda) -> None:
    transfer = Transfer("cuda")
    assert transfer.is_pinned
    transfer.send(host_batch())
    (side,) = cuda.streams
    assert [copy.name for copy in cuda.copies] == ["image", "label"]
    assert all(copy.made_on is side for copy in cuda.copies)
    (event,) = cuda.events
    assert event.stream is side
    assert event.num_copies == 2  # recorded after both, not between
    assert not side.waits_for


def test_the_consumers_stream_waits_for_its_batch_when_it_arrives(cuda: FakeCuda) -> None:
    transfer = Transfer("cuda")
    under_way = [transfer.send(host_batch()) for _ in range(3)]
    training = cuda.current[-1]
    assert not training.waits_for  # nobody waits for what is on its way
    for number, sent in enumerate(under_way):
        batch: Any = transfer.receive(sent)
        assert training.waits_for == cuda.events[: number + 1]
        for copy in batch.values():
            assert copy.made_on is cuda.streams[0]
            assert copy.used_on == [training]  # else its memory is given away while the step reads it
    assert len(set(map(id, cuda.events))) == 3
    assert len(cuda.streams) == 1


def test_what_is_to_be_done_follows_the_copies_on_their_stream(cuda: FakeCuda) -> None:
    transfer = Transfer("cuda")
    done: list[tuple[FakeStream, list[str]]] = []

    def finish(batch: Any) -> Any:
        done.append((cuda.current[-1], [each.name for each in cuda.copies]))
        cuda.copies.append(FakeTensor("made"))
        return {**batch, "made": cuda.copies[-1]}

    sent = transfer.send(host_batch(), finish)
    assert done == [(cuda.streams[0], ["image", "label"])]
    assert cuda.events[0].num_copies == 3  # recorded after it
    batch: Any = transfer.receive(sent)
    assert batch["made"].used_on == [cuda.current[-1]]


def test_what_comes_before_a_batch_is_sent_can_run_on_the_same_stream(cuda: FakeCuda) -> None:
    transfer = Transfer("cuda")
    with transfer.own_stream():
        before = cuda.current[-1]
    transfer.send(host_batch())
    assert cuda.copies[0].made_on is before is not cuda.current[-1]
    with Transfer("cpu").own_stream():
        assert len(cuda.current) == 1


def test_a_stream_that_another_thread_made_meanwhile_changes_nothing(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event must follow the copies on their own stream, or the batch is read before it is there."""
    transfer = Transfer("cuda")

    @contextmanager
    def use(stream: FakeStream) -> Iterator[None]:
        with cuda.use(stream):
            transfer._stream = FakeStream()
            yield

    monkeypatch.setattr(torch.cuda, "stream", use)
    transfer.send(host_batch())
    assert cuda.events[0].stream is cuda.copies[0].made_on


def test_the_stream_is_of_the_thread_that_receives(cuda: FakeCuda, store: StoreReader) -> None:
    """`cuda` is the device that the training has chosen for its thread; a producer's is always the first."""
    transfer = Transfer("cuda")
    transfer.open()
    (side,) = cuda.streams
    threads = [threading.Thread(target=transfer.send, args=(host_batch(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert cuda.streams == [side]
    assert all(copy.made_on is side for copy in cuda.copies)
    Transfer("cpu").open()
    assert cuda.streams == [side]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_opens_its_transfer_before_a_batch_is_sent(
    store: StoreReader, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    done: list[tuple[str, bool]] = []
    send = Transfer.send

    def note(what: str) -> None:
        done.append((what, threading.current_thread() is threading.main_thread()))

    def noted(self: Transfer, *arguments: Any) -> Any:
        note("send")
        return send(self, *arguments)

    monkeypatch.setattr(Transfer, "open", lambda self: note("open"))
    monkeypatch.setattr(Transfer, "send", noted)
    loader = loader_of(store, num_workers=num_workers)
    assert not done
    next(iter(loader))
    assert done[0] == ("open", True)
    assert "send" in [what for what, _ in done]
    loader.close()


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_on_the_cpu_nothing_moves(device: Any) -> None:
    transfer = Transfer(device)
    value = torch.ones(3)
    assert not transfer.is_pinned
    assert transfer.receive(transfer.send({"x": value}))["x"] is value


def test_batches_arrive_on_other_devices_restored(store: StoreReader) -> None:
    here = loader_of(store, num_workers=1)
    there = loader_of(store, num_workers=1, device="meta")
    for batch, wanted in zip(there, here, strict=True):
        assert batch.keys() == wanted.keys()
        for name, value in batch.items():
            assert value.device.type == "meta"
            assert (value.shape, value.dtype) == (wanted[name].shape, wanted[name].dtype)


def test_a_stream_does_not_travel(cuda: FakeCuda) -> None:
    transfer = Transfer("cuda:1")
    transfer.send(host_batch())
    copy = pickle.loads(pickle.dumps(transfer))
    assert copy.device == torch.device("cuda:1")
    copy.send(host_batch())
    assert len(cuda.streams) == 2
