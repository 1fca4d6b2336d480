"""Live: a run writes how far it has come, off its own thread, and never over its last word."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch import Callback
from tests.train.tiny import NUM_BATCHES

from flatout.cli.main import main
from flatout.config import to_yaml
from flatout.report import Dashboard, read_source, write_report
from flatout.report.run import RunRecord
from flatout.train import fit, live
from flatout.train.record import write_record
from flatout.train.waits import Waits
from flatout.train.watch import Watch

Make = Callable[..., dict[str, Any]]


def wait_for_writers() -> None:
    for thread in threading.enumerate():
        if thread.name == "live record":
            thread.join()


class Reads(Callback):
    """Reads the record after every batch, once what is being written is there."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[RunRecord] = []

    def on_train_batch_start(self, *_: Any) -> None:
        wait_for_writers()  # of the validation: while one writes, no other begins

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        wait_for_writers()
        assert self.folder is not None
        record = read_source(self.folder)
        assert isinstance(record, RunRecord)
        self.seen.append(record)


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is time for a new record."""
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    monkeypatch.setattr(live, "PAUSES_PER_WRITE", 0)


def watched_fit(config: dict[str, Any], **options: Any) -> tuple[Any, list[RunRecord]]:
    reads = Reads()

    def on_folder(folder: Path) -> None:
        reads.folder = folder

    result = fit(config, callbacks=[reads], on_folder=on_folder, **options)
    return result, reads.seen


@pytest.mark.usefixtures("_always")
def test_a_run_under_way_can_be_followed(make_config: Make) -> None:
    result, seen = watched_fit(make_config(monitor={"update_frequency": 1}))
    assert {record.status for record in seen} == {"running"}
    assert [record.global_step for record in seen] == list(range(1, 2 * NUM_BATCHES + 1))
    assert [len(record.looks) for record in seen] == list(range(1, 2 * NUM_BATCHES + 1))
    assert len(seen[-1].epochs) == 1
    assert seen[0].config["epochs"] == 2
    assert seen[0].task == "tiny"
    last = read_source(result.folder)
    assert isinstance(last, RunRecord)
    assert last.status == "finished"
    assert last.machine["num_cores"] >= 1
    assert sorted(path.name for path in result.folder.glob("run.*")) == ["run.json"]


def test_by_itself_it_writes_rarely(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[dict[str, Any]] = []
    monkeypatch.setattr(live, "write_record", lambda path, document, *_, **__: written.append(document))
    monkeypatch.setattr(live, "EPOCH_S", live.EVERY_S)  # a busy machine may take a second
    fit(make_config(epochs=1))
    assert [document["status"] for document in written] == ["running"]


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.0, 1.0), (0.01, 2.0)])
def test_an_epoch_is_on_record_soon_and_short_ones_do_not_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, pause_s: float
) -> None:
    """Whoever was told of an epoch finds it in the record of a run that was killed."""
    now, written = [100.0], []

    def write(*_: Any, **__: Any) -> None:
        written.append(now[0])
        now[0] += took_s

    monkeypatch.setattr(live, "write_record", write)
    trainer: Any = SimpleNamespace(is_global_zero=True, global_step=0)
    module: Any = None
    watch = Watch(Waits(), None)
    own = live.LiveRecord(tmp_path / "run.json", watch, lambda *_: {}, clock=lambda: now[0])

    def at(time_s: float, ends_epoch: bool) -> None:
        now[0] = time_s
        if ends_epoch:
            own.on_train_epoch_end(trainer, module)
        else:
            own.on_train_batch_end(trainer, module, None, None, 0)
        wait_for_writers()

    with own:
        own.on_train_epoch_end(trainer, module)  # of another rank, or before the start: nothing
        own.on_train_start(trainer, module)
        wait_for_writers()
        at(101.9, ends_epoch=False)
        assert written == [100.0]
        at(102.1, ends_epoch=True)
        assert written == [100.0, 102.1]
        at(102.2, ends_epoch=True)  # too short an epoch: its row comes with the first batch after the pause
        at(102.0 + pause_s, ends_epoch=False)
        assert written == [100.0, 102.1]
        at(102.2 + pause_s, ends_epoch=False)
        assert written == [100.0, 102.1, 102.2 + pause_s]
        at(106.0 + pause_s, ends_epoch=False)
        assert len(written) == 3


@pytest.mark.usefixtures("_always")
def test_the_last_word_is_the_runs(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk: a record of the run under way is still being written when the run ends."""
    leaving, ended = threading.Event(), threading.Event()
    leave = live.LiveRecord.__exit__

    def slowly(path: Path, document: dict[str, Any], *rest: Any, **options: Any) -> None:
        leaving.wait(60)
        ended.wait(1.0)  # whoever does not wait for this thread is at its end by then
        write_record(path, document)  # as if it had been asked for a moment before the end

    def exit_(self: live.LiveRecord, *rest: object) -> None:
        leaving.set()
        leave(self, *rest)

    monkeypatch.setattr(live, "write_record", slowly)
    monkeypatch.setattr(live.LiveRecord, "__exit__", exit_)
    result = fit(make_config(epochs=1))
    ended.set()
    wait_for_writers()
    assert json.loads((result.folder / "run.json").read_text())["status"] == "finished"


class Stops(Callback):
    """Ctrl-C in the second epoch."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if trainer.current_epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("_always")
def test_a_second_interruption_does_not_bring_the_run_back(
    make_config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C again while the end waits for the thread: what that was about to write is no longer wanted."""
    leaving, ended = threading.Event(), threading.Event()
    join = threading.Thread.join

    def slowly(path: Path, document: dict[str, Any], indent: int | None = 2, **options: Any) -> None:
        if not leaving.is_set():
            write_record(path, document, indent, **options)
        else:
            ended.wait(60)
            write_record(path, document, indent, **options)

    def impatient(self: threading.Thread, timeout: float | None = None) -> None:
        if self.name == "live record" and leaving.is_set() and not ended.is_set():
            raise KeyboardInterrupt
        join(self, timeout)

    class Leaves(Stops):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            wait_for_writers()
            leaving.set()
            super().on_train_batch_start(trainer, module, batch, index)

        def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
            own = next(each for each in trainer.callbacks if isinstance(each, live.LiveRecord))
            own._write(trainer)  # one is under way at the end

    monkeypatch.setattr(live, "write_record", slowly)
    monkeypatch.setattr(threading.Thread, "join", impatient)
    config = make_config()
    with pytest.raises(KeyboardInterrupt):
        fit(config, callbacks=[Leaves()])
    (folder,) = Path(config["output_dir"]).iterdir()
    ended.set()
    wait_for_writers()
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    assert sorted(path.name for path in folder.glob("run.*")) == ["run.json"]


class Fails(Callback):
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        if trainer.current_epoch == 1 and index == 1:
            raise RuntimeError("<b>no</b>")


@pytest.mark.usefixtures("_always")
def test_a_run_that_fails_and_goes_on(make_config: Make, tmp_path: Path) -> None:
    config = make_config(monitor={"update_frequency": 1})
    whole = fit(config)
    with pytest.raises(RuntimeError, match="no"):
        fit(config, callbacks=[Fails()])
    folder = whole.folder.parent / "run-0002"
    record = read_source(folder)
    assert isinstance(record, RunRecord)
    assert (record.status, record.error) == ("failed", "RuntimeError: <b>no</b>")
    assert record.is_fast
    rest, seen = watched_fit(config, resume=folder)
    assert rest.folder == folder
    assert rest.metrics == whole.metrics
    assert seen[0].status == "running"
    assert [row.epoch for row in seen[0].epochs] == [0], "the tables from before the break"
    assert seen[0].looks[0].step == 1
    write_report(folder, tmp_path / "page.html")
    assert "finished" in (tmp_path / "page.html").read_text()


@pytest.mark.usefixtures("_always")
def test_a_full_disk_does_not_end_the_training(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live, "write_record", full)
    result = fit(make_config(epochs=1))
    assert "cannot be written now: No space left" in caplog.text
    assert json.loads((result.folder / "run.json").read_text())["status"] == "finished"


def test_weights_are_the_same_with_and_without(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = fit(make_config())
    monkeypatch.setattr(live, "EVERY_S", 0.0)
    monkeypatch.setattr(live, "PAUSES_PER_WRITE", 0)
    assert fit(make_config()).metrics == plain.metrics


def test_train_with_a_dashboard(
    make_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Dashboard] = []
    enter = Dashboard.__enter__
    monkeypatch.setattr(Dashboard, "__enter__", lambda self: (made.append(self), enter(self))[1])
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(make_config(epochs=1)))
    assert main(["train", "--config", str(path), "--dashboard"]) == 0
    (served,) = made
    assert f"dashboard: {served.address}" in capsys.readouterr().err
    assert not served._thread.is_alive()
