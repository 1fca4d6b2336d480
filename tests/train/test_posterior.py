"""PosteriorMetricsMonitor: known posteriors in, known figures and verdicts out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from tests.train.tiny import Tiny, TinyModule

from flatout.config import load_config
from flatout.report.html import render_html
from flatout.report.run import run_record_of
from flatout.report.run_page import run_page
from flatout.train import PosteriorMetricsMonitor, fit, posterior

DIM = 10


def batch_of(num_active: int, seed: int, num: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Units that follow the sample with a small variance; the others are the prior's."""
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = torch.zeros(num, DIM), torch.zeros(num, DIM)
    mean[:, :num_active] = torch.randn(num, num_active, generator=generator)
    log_variance[:, :num_active] = -2.0
    return mean, log_variance


def test_the_figures() -> None:
    monitor = PosteriorMetricsMonitor()
    mean, log_variance = batch_of(4, seed=0)
    look = monitor.look(1, mean, log_variance)
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (0.5 * log_variance).exp()), torch.distributions.Normal(0.0, 1.0)
    ).mean(0)
    assert look.kl_total == pytest.approx(float(wanted.sum()), rel=1e-5)
    assert monitor.kl_per_unit == pytest.approx(wanted.tolist(), rel=1e-5, abs=1e-7)
    assert (look.active_units, look.num_units) == (4, DIM)
    assert look.mean_variance == pytest.approx(float(log_variance.exp().mean()))


@pytest.mark.parametrize(
    ("num_active", "verdict"), [(0, "collapsed"), (3, "partly collapsed"), (5, "healthy"), (10, "healthy")]
)
def test_the_verdict_comes_after_a_few_looks(num_active: int, verdict: str) -> None:
    said: list[str] = []
    monitor = PosteriorMetricsMonitor(say=said.append)
    found = [monitor.look(step, *batch_of(num_active, step)).verdict for step in range(8)]
    assert found == ["too early"] * 4 + [verdict] * 4
    assert len(said) == (verdict != "healthy")  # once, not at every look
    if said:
        assert f"the posterior has {verdict} at step 4: {num_active} of 10 units active" in said[0]
        assert "raise the KL weight more slowly" in said[0]


def test_single_samples_are_enough_over_a_window() -> None:
    """One sample a look: only the window tells a unit that follows the samples from one that does not."""
    monitor = PosteriorMetricsMonitor(window_size=40)
    for step in range(40):
        look = monitor.look(step, *batch_of(6, step, num=1))
    assert look.active_units == 6


def test_a_mean_that_drifts_says_nothing_of_the_sample() -> None:
    """The same for every sample of a batch, another at every look, as training moves it."""
    monitor = PosteriorMetricsMonitor(window_size=50)
    for step in range(50):
        mean, log_variance = batch_of(0, step, num=4)
        look = monitor.look(step, mean + 0.05 * step, log_variance)
    assert (look.active_units, look.verdict) == (0, "collapsed")


def test_the_variance_is_that_within_batches() -> None:
    """Small batches are not counted as less than they are."""
    monitor = PosteriorMetricsMonitor(window_size=200)
    for step in range(200):
        mean, log_variance = batch_of(5, step, num=2)
        look = monitor.look(step, mean * 0.13, log_variance)  # 0.0169, of which half would be too little
    assert look.active_units == 5


def test_the_window_forgets() -> None:
    said: list[str] = []
    monitor = PosteriorMetricsMonitor(window_size=5, say=said.append)
    for step in range(6):
        monitor.look(step, *batch_of(10, step))
    for step in range(6, 12):
        monitor.look(step, *batch_of(0, step))
    assert monitor.looks[5].verdict == "healthy"
    assert monitor.looks[-1].verdict == "collapsed"
    assert monitor.looks[-1].kl_total == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("window_size", [1, 2, 4])
def test_a_short_window_has_a_verdict_too(window_size: int) -> None:
    said: list[str] = []
    monitor = PosteriorMetricsMonitor(window_size=window_size, say=said.append)
    found = [monitor.look(step, *batch_of(0, step)).verdict for step in range(6)]
    assert found == ["too early"] * 4 + ["collapsed"] * 2
    assert len(said) == 1


def test_single_samples_of_a_short_window_say_nothing() -> None:
    """There is nothing to compare a sample with."""
    monitor = PosteriorMetricsMonitor(window_size=1)
    assert {monitor.look(step, *batch_of(6, step, num=1)).verdict for step in range(9)} == {"too early"}


def test_a_resumed_monitor_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    said: list[str] = []
    one = PosteriorMetricsMonitor(window_size=6, say=said.append)
    for step in range(8):
        one.look(step, *batch_of(0, step))
    torch.save(one.state_dict(), tmp_path / "state")
    other = PosteriorMetricsMonitor(window_size=6, say=said.append)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert other.report() == one.report()  # also without another look: each unit's KL is known
    for step in range(8, 12):
        assert other.look(step, *batch_of(3, step)) == one.look(step, *batch_of(3, step))
        assert other.kl_per_unit == one.kl_per_unit
    assert len([text for text in said if "has collapsed" in text]) == 1


def test_a_state_without_a_window_is_taken() -> None:
    old = PosteriorMetricsMonitor()
    old.look(0, *batch_of(3, 0))
    state = old.state_dict()
    del state["window"]
    monitor = PosteriorMetricsMonitor()
    monitor.load_state_dict(state)
    assert (len(monitor.looks), monitor.kl_per_unit) == (1, [])


def test_plots_are_written_by_another_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    release = threading.Event()

    def draw(folder: Path, looks: Any, kl_per_unit: Any) -> bool:
        release.wait(10)
        drawn.append(threading.current_thread().name)
        return True

    monkeypatch.setattr(posterior, "_draw", draw)
    monitor = PosteriorMetricsMonitor(folder=tmp_path)
    monitor.look(0, *batch_of(3, 0))
    monitor.draw()
    monitor.draw()  # the first is still being written
    assert drawn == []
    release.set()
    assert monitor._drawing is not None
    assert monitor._drawing.result(10)
    assert len(drawn) == 1
    assert drawn[0].startswith("flatout-plot")


class VaeModule(TinyModule):
    def measure(self, batch: Any) -> Any:
        values = super().measure(batch)
        mean = batch["x"][:, :3] * torch.tensor([1.0, 0.0, 0.0])
        return {**values, posterior.MEAN: mean, posterior.LOG_VARIANCE: torch.zeros_like(mean)}


class Vae(Tiny):
    def module(self, config: Any, data: Any) -> Any:
        return VaeModule(config, data)


OWN = "tests.train.test_posterior:Vae"


def test_a_run_is_watched(make_config: Callable[..., dict[str, Any]]) -> None:
    said: list[str] = []
    monitor = {"update_frequency": 1, "plot_frequency": 4, "window_size": 50}
    result = fit(make_config(task=OWN, monitor=monitor), say=said.append)
    record = (result.folder / "run.json").read_text()
    report = json.loads(record)["reports"]["PosteriorMetricsMonitor"]
    assert (report["active_units"], report["num_units"], report["num_looks"]) == (1, 3, 8)
    assert report["verdict"] == "partly collapsed"
    assert [value > 0 for value in report["kl_per_unit"]] == [True, False, False]
    assert [note for note in said if "the posterior has partly collapsed" in note]
    assert (result.folder / "posterior.svg").exists()
    units = (result.folder / "posterior_units.svg").read_text()
    assert "KL by unit at step 8, nats: 1 of 3 active" in units
    assert units.count('fill="#1f5fa8"') == 3  # a bar each, those of nothing too
    assert "kl by unit" in render_html(run_page(run_record_of(json.loads(record), "run.json")))
    assert "posterior_mean" not in str(result.metrics)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flatout-plot")]


class Fails(Callback):
    def on_train_epoch_end(self, *_: Any) -> None:
        raise RuntimeError("stop")


def test_a_run_that_fails_leaves_no_thread(make_config: Callable[..., dict[str, Any]]) -> None:
    config = make_config(task=OWN, monitor={"update_frequency": 1, "plot_frequency": 1})
    with pytest.raises(RuntimeError, match="stop"):
        fit(config, callbacks=[Fails()])
    (folder,) = Path(config["output_dir"]).iterdir()
    assert (folder / "posterior.svg").exists()  # there was a thread
    report = json.loads((folder / "run.json").read_text())["reports"]["PosteriorMetricsMonitor"]
    assert len(report["kl_per_unit"]) == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("flatout-plot")]


def test_the_last_plot_has_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the one before it is still being written."""
    drawn: list[int] = []
    release = threading.Event()

    def draw(folder: Path, looks: Any, kl_per_unit: Any) -> bool:
        release.wait(10)
        drawn.append(len(looks))
        return True

    class Still:
        is_global_zero = True

    still: Any = Still()
    monkeypatch.setattr(posterior, "_draw", draw)
    monitor = PosteriorMetricsMonitor(folder=tmp_path)
    monitor.look(0, *batch_of(3, 0))
    monitor.draw()
    monitor.look(1, *batch_of(3, 1))
    threading.Timer(0.01, release.set).start()
    monitor.on_train_end(still, still)
    assert drawn == [1, 2]


def test_a_plot_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = PosteriorMetricsMonitor()
    monitor.look(0, *batch_of(3, 0))
    assert not posterior._draw(tmp_path / "absent", monitor.looks, monitor.kl_per_unit)
    assert "posterior.svg cannot be written: No such file" in caplog.text


def test_a_run_is_not_watched(make_config: Callable[..., dict[str, Any]]) -> None:
    result = fit(make_config(task=OWN, disable_metrics_monitoring=True))
    assert json.loads((result.folder / "run.json").read_text())["reports"] == {}
    assert result.looks == []


def test_the_defaults_and_fast_detection() -> None:
    monitor = PosteriorMetricsMonitor()
    assert (monitor.update_frequency, monitor.plot_frequency, monitor.verbose) == (100, 1000, False)
    fast = load_config({"task": "sequence_vae", "fast_detection": True}, environ={}).monitor
    assert (fast.update_frequency, fast.plot_frequency, fast.window_size) == (200, 2000, 50)
