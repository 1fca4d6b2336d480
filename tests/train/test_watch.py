"""Watch: with a clock of our own, every number is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flatout.config.monitor import MonitorSection
from flatout.train import epoch_line, fit, watch
from flatout.train.record import EpochRow
from flatout.train.waits import Waits

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 5 * MS

    def __call__(self) -> int:
        return self.now


class Logger:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, numbers: dict[str, float], step: int) -> None:
        self.rows.append((step, numbers))


class Still:
    """As much of a trainer and a module as is looked at."""

    def __init__(self) -> None:
        self.accumulate_grad_batches = 2
        self.current_epoch, self.max_epochs, self.global_step = 0, 3, 0
        self.callback_metrics = {"val_loss": torch.tensor(0.25)}
        self.loggers, self.world_size, self.global_rank = [Logger()], 1, 0
        self.strategy = SimpleNamespace(root_device=torch.device("cpu"))
        self.device = torch.device("cpu")


class Watched:
    """A run whose steps take as long as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, every: int | None) -> None:
        self.clock, self.waits, self.still = Clock(), Waits(), Still()
        monkeypatch.setattr(watch, "perf_counter_ns", self.clock)
        self.watch = watch.Watch(self.waits, MonitorSection(update_frequency=every) if every else None)
        self.call("on_train_start")
        self.call("on_train_epoch_start")

    def call(self, hook: str, *rest: Any) -> None:
        getattr(self.watch, hook)(self.still, self.still, *rest)

    def step(
        self, wait_ms: int, work_ms: int, num: int = 4, loss: float = 1.0, num_valid: int | None = None
    ) -> None:
        self.waits.total_ns += wait_ms * MS
        self.clock.now += (wait_ms + work_ms) * MS
        self.still.global_step += 1
        outputs = {"loss": torch.tensor(loss / self.still.accumulate_grad_batches)}
        batch = {"key": torch.zeros(num)}
        if num_valid is not None:
            batch["valid"] = torch.arange(num) < num_valid
        self.call("on_train_batch_end", outputs, batch, 0)


def test_a_run_of_one_step_measures_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=None)
    run.step(900, 100)
    run.clock.now += MS
    run.call("on_validation_start")
    speed = run.watch.speed()
    assert (speed.samples_per_s, speed.data_wait_share, speed.share_not_waiting) == (None, None, None)
    run.call("on_train_epoch_end")
    (row,) = run.watch.epochs
    assert (row.samples_per_s, row.data_wait_share) == (None, None)


def test_shares_and_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=None)
    run.step(900, 100)  # the first warms up and does not count
    for _ in range(3):
        run.step(1, 3)
    speed = run.watch.speed()
    assert speed.num_steps == 4
    assert speed.first_step_s == pytest.approx(1.0)
    assert speed.train_s == pytest.approx(0.012)
    assert speed.data_wait_share == pytest.approx(0.25)
    assert speed.share_not_waiting == pytest.approx(0.75)
    assert speed.samples_per_s == pytest.approx(1000.0)
    assert speed.step_ms == pytest.approx(4.0)
    assert run.watch.live_wait_share() == pytest.approx(0.25)
    assert run.watch.looks == []


def test_validation_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=None)
    run.step(0, 1)
    run.step(0, 4)
    run.call("on_validation_start")
    run.clock.now += 5000 * MS
    run.call("on_validation_end")
    run.step(4, 0)
    speed = run.watch.speed()
    assert speed.train_s == pytest.approx(0.008)
    assert speed.data_wait_share == pytest.approx(0.5)


def test_the_row_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=None)
    run.step(0, 1, num=4, loss=1.0)
    run.step(1, 1, num=2, loss=4.0)
    run.call("on_validation_start")
    run.call("on_validation_end")
    run.call("on_train_epoch_end")
    (row,) = run.watch.epochs
    assert row.train_loss == pytest.approx((4 * 1.0 + 2 * 4.0) / 6)  # by sample, before Lightning's division
    assert row.metrics == {"val_loss": 0.25}
    assert row.data_wait_share == pytest.approx(0.5)
    assert run.still.loggers[0].rows[0][1]["train_loss"] == row.train_loss
    run.still.current_epoch = 1
    run.call("on_train_epoch_start")
    run.step(0, 2, num=3, loss=9.0)
    run.call("on_train_epoch_end")
    assert run.watch.epochs[1].train_loss == pytest.approx(9.0)
    assert run.watch.epochs[1].samples_per_s == pytest.approx(1500.0)


def test_samples_that_only_fill_a_batch_count_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=None)
    run.step(0, 1, num=4, loss=1.0, num_valid=4)
    run.step(0, 1, num=2, loss=4.0, num_valid=1)
    run.call("on_train_epoch_end")
    (row,) = run.watch.epochs
    assert row.train_loss == pytest.approx((4 * 1.0 + 1 * 4.0) / 5)
    assert row.samples_per_s == pytest.approx(1000.0)
    assert run.watch.speed().samples_per_s == pytest.approx(1000.0)


def of_two(run: Watched, rank: int, monkeypatch: pytest.MonkeyPatch, *others: float) -> None:
    """The other rank has these numbers when they are added up."""
    run.still.world_size, run.still.global_rank = 2, rank
    run.call("setup", "fit")
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda own: own.add_(torch.tensor(others).double()))


def test_the_samples_of_all_ranks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches by tokens: the other rank has 11 samples a step where this one has 3."""
    run = Watched(monkeypatch, every=2)
    of_two(run, 0, monkeypatch, 22.0 * 2.0, 22.0, 11.0)
    run.step(0, 1, num=3, loss=1.0)
    run.step(0, 1, num=3, loss=1.0)
    run.call("on_train_epoch_end")
    (row,) = run.watch.epochs
    assert row.train_loss == pytest.approx((6 * 1.0 + 22 * 2.0) / 28)
    assert row.samples_per_s == pytest.approx(14_000.0)
    assert run.watch.speed().samples_per_s == pytest.approx(14_000.0)
    run.call("on_train_epoch_start")
    run.step(0, 1, num=3)
    run.step(0, 1, num=3)
    assert run.watch.looks[1].samples_per_s == pytest.approx(6000.0)  # as if both had as many, until the end


def test_the_loss_of_all_ranks_is_kept_and_goes_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=None)
    of_two(run, 0, monkeypatch, 20.0, 5.0)
    run.step(0, 1, num=4, loss=1.0)
    state = run.watch.state_dict()
    assert (state["loss"], state["loss_samples"]) == (24.0, 9.0)
    for rank, wanted in ((0, (24.0, 9.0)), (1, (None, 0.0))):
        other = Watched(monkeypatch, every=None)
        of_two(other, rank, monkeypatch, 0.0, 0.0)
        other.watch.load_state_dict(state)
        kept = other.watch.state_dict()
        assert (kept["loss"], kept["loss_samples"], kept["loss_epoch"]) == (*wanted, 0)


def test_looks_are_of_the_steps_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=2)
    for wait_ms in (9, 0, 3, 3):
        run.step(wait_ms, 1)
    assert [look.step for look in run.watch.looks] == [2, 4]
    assert [look.data_wait_share for look in run.watch.looks] == pytest.approx([0.0, 0.75])
    assert run.watch.looks[0].rss_bytes > 1 << 20
    assert [step for step, _ in run.still.loggers[0].rows] == [2, 4]


def test_the_tables_survive_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, every=1)
    run.step(0, 1)
    run.call("on_train_epoch_end")
    other = watch.Watch(Waits(), None)
    other.load_state_dict(run.watch.state_dict())
    assert (other.epochs, other.looks) == (run.watch.epochs, run.watch.looks)


def test_the_line_of_an_epoch() -> None:
    row = EpochRow(2, 100, 30, 0.41234, {"val_loss": 0.5}, 812.3, 0.0031)
    line = epoch_line(row)
    assert line == "epoch 3/100: train_loss 0.4123, val_loss 0.5, 812 samples/s, 0.3% waiting for data"
    assert epoch_line(EpochRow(0, 2, 1, None, {}, None, None)) == "epoch 1/2: "


def test_the_bar_shows_the_wait(
    make_config: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    fit(make_config(epochs=1), shows_bar=True)
    shown = "".join(capsys.readouterr())
    assert "waiting for data=" in shown
    assert "epoch 1/1: 100%" in shown


class NoCounter(Exception):  # as NVML's, which derives from nothing more special
    pass


@pytest.mark.parametrize("error", [NoCounter("Not Supported"), ModuleNotFoundError(), RuntimeError("driver")])
def test_a_device_without_a_counter_is_asked_once(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def utilisation(device: Any) -> int:
        asked.append(device)
        raise error

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 77)
    monkeypatch.setattr(torch.cuda, "utilization", utilisation)
    counters, cuda = watch.DeviceCounters(), torch.device("cuda", 0)
    assert [counters.read(cuda) for _ in range(3)] == [{"device_bytes": 77}] * 3
    assert asked == [cuda]


def test_what_a_device_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 77)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 25)
    counters = watch.DeviceCounters()
    wanted = {"device_bytes": 77, "device_utilisation": 0.25}
    assert [counters.read(torch.device("cuda")) for _ in range(2)] == [wanted] * 2
    assert counters.read(torch.device("cpu")) == {}


def test_an_epoch_without_a_validation_has_no_metrics_of_one(
    make_config: Callable[..., dict[str, Any]],
) -> None:
    """Lightning keeps those of the last one: they would be told as this epoch's."""
    result = fit(make_config(epochs=3, check_val_every_n_epoch=2))
    assert [sorted(row.metrics) for row in result.epochs] == [[], ["val_distance", "val_loss"], []]
    assert {"val_distance", "val_loss"} <= set(result.metrics)
