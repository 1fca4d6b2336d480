"""`flatout bench tune` with simulated trials: every setting is tried, the figures follow from the rates."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flatout.bench import TuneBench, bench_tune
from flatout.bench import tune as benching
from flatout.bench.tune_workloads import WORKLOADS
from flatout.cli.main import main
from flatout.config import load_config
from flatout.doctor.tune import run as tuning
from flatout.doctor.tune.bed import Bed
from flatout.doctor.tune.race import Entry, Failed, Slice, is_clear
from flatout.doctor.tune.setting import AS_IT_IS, Setting
from flatout.errors import ConfigError, FlatoutError

TINY = 0.005


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_can_be_loaded(name: str, tmp_path: Path) -> None:
    config = load_config(WORKLOADS[name].make(tmp_path / name, TINY), environ={})
    bed = Bed(config, tmp_path)
    facts = bed.facts()
    assert facts.is_fast == (name != "slow_decode")
    assert facts.consumer == "nothing"
    assert bed.run(facts.start.changed(num_workers=0), 0.01).samples_per_s > 0


class Simulated:
    """Trials of known rates; opening and trials take no time."""

    def __init__(self, config: Any, cap_bytes: int, command: str = "", *, patience_s: float = 60.0) -> None:
        self._bed = Bed(config, Path(config.output_dir))

    def __enter__(self) -> Simulated:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def facts(self) -> Any:
        return self._bed.facts()

    def probe(self, seconds: float) -> Any:
        return self._bed.probe(0.01)

    def get_ready(self, setting: Setting, *, on_sample: bool) -> None:
        assert on_sample or setting.encoding == AS_IT_IS

    def run(self, setting: Setting, seconds: float, *, on_sample: bool) -> Slice | Failed:
        assert on_sample or setting.encoding == AS_IT_IS
        if setting.encoding == "zstd":
            return Failed("no codec")
        rate = 1000.0 * (2.0 if setting.encoding == "uint8" else 1.0) + 100 * min(setting.num_workers, 2)
        return Slice(rate, 9, seconds, 0.5, 0.1, 1 << 20, 0.01)


def test_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benching, "Trials", Simulated)
    monkeypatch.setattr(tuning, "Trials", Simulated)
    arguments = ["--workload", "small_samples", "--share", str(TINY), "--rounds", "2", "--budget", "5"]
    arguments += ["--most-workers", "3", "--scratch", str(tmp_path)]
    assert main(["bench", "tune", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = document["workloads"]["small_samples"]
    assert found["best"]["setting"]["encoding"] == found["tuned"]["setting"]["encoding"] == "uint8"
    assert found["best"]["samples_per_s"] == 2200
    assert found["reached"] == pytest.approx(found["tuned"]["samples_per_s"] / 2200)
    assert document["lowest_reached"] == found["reached"] >= 0.95
    assert found["exhaustive_rounds"] == 2
    assert found["num_settings"] == 5 * (1 + 3 * len(benching.DEPTHS))
    assert document["highest_time_share"] == found["time_share"] > 0
    assert list(tmp_path.iterdir()) == []
    assert main(["bench", "tune", *arguments]) == 0
    assert "small_samples, of the best setting" in capsys.readouterr().out


def test_what_cannot_be_measured_is_told() -> None:
    with pytest.raises(ConfigError, match="no workload 'sound'; there are: small_samples"):
        bench_tune(TuneBench(workloads=("sound",)))
    with pytest.raises(FlatoutError, match="no setting could be measured: no disk"):
        benching.try_all([Setting(0, 1, 1)], lambda setting: Failed("no disk"), 2, print)


def slice_of(rate: float) -> Slice:
    return Slice(rate, 9, 0.3, 0.5, 0.1, 1 << 20, 0.01)


@pytest.mark.parametrize(("noise", "rounds"), [(0.001, 3), (0.5, 6)])
def test_every_setting_is_measured_until_it_is_clear_which_is_fastest(noise: float, rounds: int) -> None:
    generator = np.random.default_rng(0)

    def measure(setting: Setting) -> Slice:
        return slice_of(100.0 * math.exp(noise * generator.standard_normal()))

    entries = benching.try_all([Setting(n, 1, 1) for n in range(9)], measure, 6, print)
    assert [len(entry.slices) for entry in entries] == [rounds] * 9


def test_what_disturbs_a_whole_round_does_not_count() -> None:
    entries = [Entry(Setting(n, 1, 1), [slice_of((1 + n) * f) for f in (1.0, 0.2, 3.0)]) for n in range(5)]
    assert is_clear(entries)
    assert not is_clear([*entries[:2], Entry(Setting(9, 1, 1), [slice_of(f) for f in (2.0, 5.0, 1.0)])])


def test_a_finalist_that_fails_is_told() -> None:
    one, other = Setting(0, 1, 1), Setting(1, 1, 1)
    entries = [Entry(one, [slice_of(1.0)]), Entry(other, failure="no memory")]
    tuned: Any = SimpleNamespace(setting=other, start=one)
    with pytest.raises(FlatoutError, match="could not be measured again: no memory"):
        benching._document(tuned, entries[0], entries, entries, 1.0)
