"""What is measured part by part: beside a busy process, in the training thread itself, at shorter lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from flatout.doctor.ceiling import here, shorter
from flatout.doctor.ceiling.beside import BesideSource
from flatout.doctor.ceiling.measure import sent_of, slowdown_of
from flatout.doctor.ceiling.plan import part_blocks
from flatout.doctor.ceiling.sent import sent_source
from flatout.doctor.ceiling.shorter import CallSource, measure_shorter, padded_batches
from flatout.doctor.ceiling.sources import LoaderSource
from flatout.doctor.child.watch import WATCH
from flatout.doctor.patches.modules import CALLS, Call
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import BlockRow, Trace, read_trace
from flatout.doctor.workers.padding import Padded, padded_of


def blocks_of(*pairs: tuple[float, float]) -> list[BlockRow]:
    """Two steps a block: resident batches, then the same beside a busy process."""
    at, rows = 0.0, []
    for number, pair in enumerate(pairs):
        for name, seconds in zip(("resident", "beside"), pair, strict=True):
            rows.append(BlockRow(name, number, at, at + 2 * seconds, 2, 0.0))
            at += 2 * seconds
    return rows


def test_the_slowdown_is_what_a_step_takes_more_beside_a_busy_process() -> None:
    trace = Trace(1, blocks=blocks_of((1.0, 1.4), (2.0, 2.8), (0.5, 0.7)))
    assert slowdown_of(trace, Phases(trace)) == pytest.approx(0.4)
    faster = Trace(1, blocks=blocks_of((1.0, 0.9), (1.0, 0.9)))
    assert slowdown_of(faster, Phases(faster)) == 0.0
    assert slowdown_of(Trace(1, blocks=blocks_of((1.0, 1.4))), Phases(Trace(1))) is None


def test_one_threads_cpu_seconds_tell_where_others_take_the_cores() -> None:
    """It took three times as long beside the other process, but ran for half as long again."""
    rows = [row._replace(cpu_s=2 * (0.6 if row.name == "beside" else 0.4)) for row in blocks_of((1.0, 3.0)) * 2]
    rows[2:] = [row._replace(round=1) for row in rows[2:]]
    trace = Trace(1, blocks=rows)
    assert slowdown_of(trace, Phases(trace)) == pytest.approx(0.5)
    several = Trace(1, blocks=[row._replace(cpu_s=5 * row.cpu_s) for row in rows])
    assert (
        slowdown_of(several, Phases(several)) == 1.0
    )  # two threads of a team, and at most what taking turns costs


def test_what_is_sent_takes_what_its_steps_take_more() -> None:
    rows = [
        row._replace(name="sent" if row.name == "beside" else row.name)
        for row in blocks_of((1.0, 1.2), (2.0, 2.3))
    ]
    trace = Trace(1, blocks=rows)
    assert sent_of(trace, Phases(trace)) == pytest.approx(0.25)
    assert sent_of(Trace(1, blocks=rows[:2]), Phases(trace)) is None


def test_a_worker_sends_what_is_kept() -> None:
    kept = [{"x": torch.full((2, 3), float(number))} for number in range(2)]
    loader: DataLoader[Any] = DataLoader(TensorDataset(torch.zeros(8)), batch_size=2)
    source = sent_source(LoaderSource("base", lambda: iter(loader), next), loader, kept)
    assert source is not None
    assert [float(source.next()["x"][0, 0]) for _ in range(3)] == [
        1.0,
        0.0,
        1.0,
    ]  # the first was taken to start it
    source.close()
    spawned: DataLoader[Any] = DataLoader(
        TensorDataset(torch.zeros(8)), num_workers=1, multiprocessing_context="spawn"
    )
    assert sent_source(LoaderSource("base", lambda: iter(loader), next), spawned, kept) is None


def test_a_process_is_busy_beside_its_blocks_and_gone_afterwards() -> None:
    source = BesideSource([torch.ones(2)])
    source.begin()
    process = source._process
    assert process is not None
    assert process.poll() is None
    assert float(source.next().sum()) == 2.0
    source.end()
    assert process.poll() is not None
    source.end()  # twice does no harm


def test_without_another_process_the_steps_are_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    source = BesideSource([torch.ones(2)])
    source.begin()
    assert source._process is None
    assert float(source.next().sum()) == 2.0
    source.end()


def measured(loader: DataLoader[Any], batch: Any, optimiser: Any = None) -> dict[str, float]:
    """The parts, of a loader whose own iterator is not asked for."""
    return here.measure_parts(LoaderSource("base", lambda: iter(()), next), loader, batch, optimiser)


class Clock:
    """A clock that the measured work itself moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (here, shorter):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)

    def works(self, seconds: float) -> None:
        self.now += seconds


class Decoded(Dataset[Any]):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.works(0.01)
        return torch.full((3,), float(index)) + 0 * torch.rand(3)


def test_samples_and_collation_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def collate(items: list[torch.Tensor]) -> torch.Tensor:
        clock.works(0.5)
        return torch.stack(items)

    loader = DataLoader(Decoded(clock), batch_size=4, num_workers=2, collate_fn=collate)
    found = measured(loader, torch.arange(3))
    assert found["items_here_s"] == pytest.approx(0.04)
    assert found["collate_here_s"] == pytest.approx(0.5)
    assert found["stack_here_s"] == pytest.approx(0.0)
    assert clock.now < 2.0  # no more batches than there is time for


def test_measuring_draws_nothing_from_the_scripts_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Decoded(Clock(monkeypatch)), batch_size=4, shuffle=True)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    found = measured(loader, torch.ones(4, 8), None)
    assert torch.equal(torch.rand(4), expected)
    assert {"items_here_s", "hand_over_s", "augment_here_s"} <= found.keys()


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        raise RuntimeError("only in a worker")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        raise AssertionError("a stream must not be begun anew")


def test_samples_that_take_too_long_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(here, "MOST_S", 0.05)
    loader = DataLoader(Decoded(clock), batch_size=16, num_workers=2)
    assert "items_here_s" not in measured(loader, torch.ones(2, 8), None)
    assert clock.now < 0.1


@pytest.mark.parametrize("make", [Broken, Stream])
def test_what_cannot_be_read_here_is_left_out(make: Callable[[], Any]) -> None:
    found = measured(DataLoader(make(), batch_size=2, num_workers=1), torch.arange(6), None)
    assert found == {}


def test_unlike_samples_have_no_stacking() -> None:
    samples: Any = [torch.ones(length) for length in (2, 3, 4, 5)]
    loader: DataLoader[Any] = DataLoader(samples, batch_size=2, num_workers=1, collate_fn=list)
    assert measured(loader, torch.arange(3)).keys() == {"items_here_s", "collate_here_s"}


class Reader(nn.Module):
    """Takes as long as its texts are, and a tenth of the longest in any case."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.layer = nn.Embedding(50, 2)
        self.clock = clock

    def forward(self, texts: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.clock.works(texts.shape[1] + 10)
        assert mask is None or mask.shape == texts.shape
        return {"logits": self.layer(texts).mean(1)}


def texts(*lengths: int, padded_to: int = 100) -> torch.Tensor:
    batch = torch.zeros(len(lengths), padded_to, dtype=torch.long)
    for row, length in zip(batch, lengths, strict=True):
        row[:length] = 7
    return batch


def test_lengths_of_a_padded_batch() -> None:
    assert padded_of({"texts": texts(10, 30, 20)}) == Padded(100, 30, 20.0)
    assert padded_batches([texts(90, 95, 99)]) == []
    assert padded_batches([torch.rand(4, 9), torch.arange(3)]) == []


def test_shorter_batches_are_timed_by_the_models_own_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shorter, "SHORTER_S", 1e9)
    model, batches = Reader(Clock(monkeypatch)), [texts(10, 30, 20), texts(50, 10, 30)]
    other = nn.Linear(1, 1)
    CALLS.kept = [Call(other, (torch.ones(3, 1),), {}), Call(model, (batches[0],), {"mask": batches[0] > 0})]
    found = measure_shorter(padded_batches(batches))
    assert found["trim_share"] == pytest.approx(0.6)
    assert found["sort_share"] == pytest.approx(0.75)
    assert found["trimmed_ratio"] == pytest.approx((40 + 60) / 2 / 110)
    assert found["sorted_ratio"] == pytest.approx((30 + 40) / 2 / 110)
    assert model.layer.weight.grad is None
    assert CALLS.kept == []


class Preparing(Reader):
    """Prepares itself for each length that it has not met yet, as libraries do."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.met: set[int] = set()

    def forward(self, texts: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        if texts.shape[1] not in self.met:
            self.clock.works(50)
            self.met.add(texts.shape[1])
        return super().forward(texts, mask)


def test_first_calls_of_a_length_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shorter, "SHORTER_S", 1e9)
    batch = texts(10, 30, 20)
    CALLS.kept = [Call(Preparing(Clock(monkeypatch)), (batch,), {})]
    found = measure_shorter(padded_batches([batch]))
    assert found["trimmed_ratio"] == pytest.approx((50 + 40 + 40) / (2 * 110))


class Crowded(Reader):
    """Somebody else begins to compute beside it: each call takes longer than the one before."""

    num_calls = 0

    def forward(self, texts: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.num_calls += 1
        self.clock.works(texts.shape[1] * self.num_calls)
        return super().forward(texts, mask)


def test_shorter_calls_stand_beside_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shorter, "SHORTER_S", 1e9)
    batch = texts(50, 50, 10)
    CALLS.kept = [Call(Crowded(Clock(monkeypatch)), (batch,), {})]
    found = measure_shorter(padded_batches([batch] * 20))
    assert found["trimmed_ratio"] == pytest.approx(0.5, abs=0.03)


def test_a_model_for_one_length_only_is_not_measured() -> None:
    batch = texts(10, 30)
    CALLS.kept = [Call(nn.Linear(100, 2), (batch.float(),), {})]
    assert measure_shorter(padded_batches([batch])).keys() == {"trim_share", "sort_share"}
    CALLS.kept = []
    assert measure_shorter(padded_batches([batch])).keys() == {"trim_share", "sort_share"}


def test_calls_are_kept_only_while_asked_for() -> None:
    source = CallSource([torch.ones(2)])
    source.begin()
    assert CALLS.keeps
    CALLS.keep(nn.Identity(), (1,), {})
    with torch.no_grad():
        CALLS.keep(nn.Identity(), (2,), {})
    source.end()
    assert not CALLS.keeps
    assert [call.args for call in CALLS.kept] == [(1,)]
    CALLS.kept = []


def test_the_parts_come_as_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = []
    monkeypatch.setattr(WATCH, "add", rows.append)
    loader = DataLoader(TensorDataset(texts(*[5] * 8)), batch_size=4)
    blocks = list(part_blocks(LoaderSource("base", lambda: iter(()), next), loader, [texts(10, 20)], None))
    assert [block.source.name for block in blocks] == ["call"]
    assert not CALLS.keeps
    measured = read_trace(1, rows).measured
    assert measured["trim_share"] == pytest.approx(0.8)
    assert measured["stack_here_s"] > 0
