"""`flatout bench train` on tiny data: rounds, resident batches, equal samples, waits, its document."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from tests.train.tiny import NUM_BATCHES, NUM_TRAIN, Plain, config_of, prepare, write_rows

from flatout.bench import TrainBench, bench_train, train_pairs, train_race
from flatout.bench.train import data_folder
from flatout.bench.train_contestant import LOOK_EVERY, Entry, compete
from flatout.bench.train_module import SimulatedAccelerator
from flatout.bench.train_monitor import MONITORS, MonitorClock, seconds_per_step
from flatout.bench.train_pairs import NUM_PROCESSES, Pair, Pairs, plan_pairs, rate, ratio_of
from flatout.bench.train_process import Contestant
from flatout.bench.train_race import FAST, RESIDENT, STANDARD, STANDARD_WORKERS, RaceSetting
from flatout.bench.train_resident import Alternating
from flatout.bench.train_rounds import Asked, Figures
from flatout.bench.train_sets import GUIDE_CASES, TRAIN_CASES, count_labelled
from flatout.cli.main import main
from flatout.config import load_config
from flatout.errors import ConfigError, FlatoutError, LoaderError
from flatout.loader import FastDataLoader
from flatout.train import Sample, TaskData, fit
from flatout.train.accumulation import ExactAccumulation
from flatout.train.checkpoints import KeepBest, KeepLast, StopEarly
from flatout.train.optimiser import FollowFused, FollowRate
from flatout.train.progress import EpochEnds
from flatout.train.randomness import StepSeed
from flatout.train.task import BUILT_IN, load_task
from flatout.train.watch import Watch

SETTING = RaceSetting(0.1, 1, None, lambda text: None)
FACTS = {"data_s", "monitor", "num_samples", "notes"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    made = config_of(write_rows(folder / "raw"), folder / "runs")
    prepare(made)
    return made


def figures_of(entry: Entry, *asked: Asked) -> list[Figures]:
    """The facts of a contestant in this process, and the figures of its rounds."""
    answers: list[Figures] = []
    wanted = iter(asked)

    def exchange(figures: Figures) -> Asked:
        answers.append(figures)
        return next(wanted, Asked())

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    compete(entry, exchange)
    torch.set_num_threads(before)
    gc.collect()  # the workers of its loader end with it
    return answers


def test_rounds_count_their_steps(config: dict[str, Any]) -> None:
    facts, first, second, third = figures_of(
        Entry(config), Asked(steps=2), Asked(seconds=1e-9), Asked(steps=NUM_BATCHES, is_whole=True)
    )
    assert set(facts) == {"num_batches", *FACTS}
    assert facts["num_batches"] == NUM_BATCHES
    assert facts["num_samples"] == NUM_TRAIN
    assert [each["steps"] for each in (first, second, third)] == [2, 1, NUM_BATCHES]
    assert [each["samples"] for each in (first, second, third)] == [8, 4, NUM_TRAIN]
    assert first["epoch_starts"] == []  # the first step of a round is not counted: batches 1 and 2
    assert third["epoch_starts"] == [3]  # batch 3 was the last of its epoch without being counted
    for each in (first, second, third):
        assert sum(each["step_s"]) == pytest.approx(each["wall_s"])
        assert 0 <= each["wait_s"] <= each["data_s"] <= each["wall_s"]
        assert each["cpu_s"] > 0
        assert each["peak_rss_bytes"] > 1e6


def test_contestants_have_the_same_batches_whatever_they_are(config: dict[str, Any]) -> None:
    asked = [Asked(steps=3), Asked(steps=5), Asked(steps=2)]  # over the ends of epochs
    fast = Entry(config, {"use_fast_loader": True})
    entries = [
        fast,
        Entry(config, {"use_fast_loader": False}),
        Entry(config, {"use_fast_loader": False, "num_workers": 2}),
        Entry(config, accelerator_ms=0.0),
    ]
    keys = [[each["keys"] for each in figures_of(entry, *asked)[1:]] for entry in entries]
    assert len(set(keys[0])) == 3
    assert all(found == keys[0] for found in keys)
    other = figures_of(Entry(config, {"seed": 1}), *asked)[1:]
    assert [each["keys"] for each in other] != keys[0]


def test_both_sides_of_a_pair_have_the_batches_of_the_loader(config: dict[str, Any]) -> None:
    def loader() -> FastDataLoader:
        return FastDataLoader(config["preprocessed_data_dir"], 4, split="train", shuffle=True, num_workers=0)

    wanted = [batch["x"].clone() for plain in [loader()] for _ in range(3) for batch in plain]
    both = Alternating(loader())
    stream = iter(both)
    for first, num in ((0, 3), (3, 5), (8, 2)):  # over the ends of epochs
        both.take(num)
        for is_resident in (False, True, True, False):
            both.start(is_resident)
            for at in range(first, first + num):
                assert torch.equal(next(stream)["x"], wanted[at])
                assert both.state_dict() == {"epoch": at // NUM_BATCHES}
    both.start(True)
    assert [len(next(stream)["x"]) for _ in range(2)] == [4, 4]
    with pytest.raises(LoaderError, match="only 2 batches are in memory"):
        next(stream)
    both.close()


@pytest.mark.parametrize("accelerator_ms", [None, 0.5])
def test_both_rounds_of_a_pair_are_over_the_same_batches(
    config: dict[str, Any], accelerator_ms: float | None
) -> None:
    entry = Entry(config, {"use_fast_loader": True}, is_alternating=True, accelerator_ms=accelerator_ms)
    asked = [
        Asked(steps=5, num_warm=2, is_resident=is_resident, is_again=is_again)
        for is_resident, is_again in ((True, False), (False, True), (False, False), (True, True)) * 2
    ]
    rounds = figures_of(entry, *asked)[3:]
    keys = [each["keys"] for each in rounds]
    assert keys[0::2] == keys[1::2]
    assert len(set(keys)) == 3
    assert [each["steps"] for each in rounds] == [5] * 6


class Slow:
    """Takes 4 ms of the processor for each sample."""

    def __call__(self, sample: Sample) -> Sample:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass
        return sample


class SlowLoading(Plain):
    def sample_transform(self, config: Any, data: TaskData) -> Any:
        return Slow()


def test_a_slow_loader_shows_as_waiting(config: dict[str, Any]) -> None:
    """Compared by the processor's time: how long a machine takes for it depends on who else is there."""
    task = {"task": "tests.bench.test_train_bench:SlowLoading"}
    (_, slow) = figures_of(Entry(config, {**task, "use_fast_loader": False}), Asked(steps=8))
    assert slow["samples"] * 0.004 <= slow["wait_s"] <= slow["data_s"]
    for settings in ({"use_fast_loader": False}, {**task, "use_fast_loader": True}):  # not slow; done once
        (_, other) = figures_of(Entry(config, settings), Asked(steps=8))
        assert other["cpu_s"] / other["samples"] + 0.002 < slow["cpu_s"] / slow["samples"]


def test_augmentation_is_data_time_unless_it_runs_ahead(config: dict[str, Any]) -> None:
    (_, plain) = figures_of(Entry(config), Asked(steps=6))
    (_, ahead) = figures_of(Entry(config, accelerator_ms=0.5), Asked(steps=6))
    for each in (plain, ahead):
        assert each["augment_s"] > 0
    assert plain["data_s"] == pytest.approx(plain["wait_s"] + plain["augment_s"])
    assert ahead["data_s"] == ahead["wait_s"]
    assert plain["busy_s"] == 0
    assert 6 * 0.5e-3 <= ahead["busy_s"] <= ahead["wall_s"]


def test_the_accelerator_leaves_the_processor_free() -> None:
    accelerator = SimulatedAccelerator(3.0)
    started = time.thread_time()
    found = accelerator.training_step({"key": torch.arange(5)}, 0)
    assert found["losses"].shape == (5,)
    assert accelerator.busy_s >= 0.003
    assert time.thread_time() - started < accelerator.busy_s


def test_looks_of_the_monitors_are_kept_apart(config: dict[str, Any]) -> None:
    clock = MonitorClock(look_every=2)
    watch = Watch.__new__(Watch)
    spent = iter([0.001, 0.0, 0.001, 0.004, 0.001, 0.004])

    def hook(*_: Any) -> None:
        end = time.thread_time() + next(spent)
        while time.thread_time() < end:
            pass

    watch.on_train_batch_end = hook  # type: ignore[method-assign]

    class Still:
        callbacks = (watch, clock)

    clock.setup(Still, None, "fit")  # type: ignore[arg-type]
    for _ in range(6):
        for callback in Still.callbacks:
            callback.on_train_batch_end(Still, None, None, None, 0)  # type: ignore[arg-type]
    found = clock.figures()
    assert 0.001 <= found["plain_s"] < 0.004 <= found["look_s"]
    assert found["mean_s"] == pytest.approx((found["plain_s"] + found["look_s"]) / 2)
    assert seconds_per_step(found, 1) == found["look_s"]
    assert found["plain_s"] < seconds_per_step(found, 100) < found["mean_s"]
    real = figures_of(Entry(config), Asked(steps=3 * LOOK_EVERY))[1]["monitor"]
    assert 0 < real["plain_s"] < real["look_s"]


class Seen(Callback):
    """Which callbacks a training has."""

    kinds: set[type]

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.kinds = {type(callback) for callback in trainer.callbacks}


def test_all_that_watches_by_default_is_counted(config: dict[str, Any], tmp_path: Path) -> None:
    seen = Seen()
    fit({**config, "output_dir": str(tmp_path), "num_workers": 1, "epochs": 1}, callbacks=[seen])
    assert set(MONITORS) <= seen.kinds
    works = {ExactAccumulation, FollowFused, FollowRate, KeepBest, KeepLast, StepSeed, StopEarly}
    others = {kind for kind in seen.kinds - set(MONITORS) if kind.__module__.startswith("flatout.")}
    assert others - works == {EpochEnds}  # a line an epoch


@pytest.mark.parametrize("task", TRAIN_CASES)
def test_the_standard_path_is_the_guides(task: str, tmp_path: Path) -> None:
    config = {"task": task, **TRAIN_CASES[task].settings, "preprocessed_data_dir": str(tmp_path)}
    before = load_task(load_config(config)).before
    entries = train_race.entries(config, SETTING)
    found = {name: load_config(config, overrides=entry.overrides) for name, entry in entries.items()}
    assert list(found) == [STANDARD, STANDARD_WORKERS, FAST, RESIDENT]
    for name, num_workers in ((STANDARD, 0), (STANDARD_WORKERS, 2)):
        path = found[name]
        assert path.num_workers == num_workers
        assert path.use_fast_loader is before["use_fast_loader"] is False
        assert path.use_gpu_augment is before.get("use_gpu_augment", False) is False
        assert path.cache_in_memory is before.get("cache_in_memory", False) is False
    workers = found[STANDARD_WORKERS]
    for name in ("prefetch_factor", "persistent_workers"):
        assert getattr(workers, name) == before.get(name, getattr(found[FAST], name))
    same = ("batch_size", "precision", "model", "length_buckets", "seed", "max_sequence_length", "fields")
    for name in same:  # what a model gets and does is no part of the comparison
        assert len({str(getattr(each, name)) for each in found.values()}) == 1, name
    assert found[FAST].use_fast_loader is True
    assert entries[RESIDENT].is_alternating


def test_different_batches_are_no_race(tmp_path: Path) -> None:
    config = config_of(write_rows(tmp_path / "raw"), tmp_path / "runs")
    prepare(config)
    train_race.compare_paths(config)
    for file in (tmp_path / "raw").glob("*.npy"):
        times = file.stat()
        np.save(file, np.load(file) + 1)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(FlatoutError, match="batch 0 of the two paths differs in x"):
        train_race.compare_paths(config)


def test_rounds_are_planned_by_the_length_of_a_step() -> None:
    setting = RaceSetting(4.0, 5, None, print)
    assert train_race.plan_rounds([10.0, 10.0], setting) == (4, 5)
    assert train_race.plan_rounds([0.5, 2.0], setting) == (8, 5)
    assert train_race.plan_rounds([0.0625, 0.0625], setting) == (16, 20)
    assert train_race.plan_rounds([0.25, 0.0625], setting) == (16, 8)  # the slow one takes the time
    assert train_race.plan_rounds([0.001, 0.001], setting) == (16, 60)


def round_of(wall_s: float, data_s: float, **figures: Any) -> Figures:
    monitor = {"plain_s": 1e-4, "look_s": 3e-4, "mean_s": 2e-4}
    made = {"steps": 2, "samples": 8, "wall_s": wall_s, "wait_s": data_s, "data_s": data_s, "busy_s": 0.0}
    return {**made, "cpu_s": 1.6, "peak_rss_bytes": 5, "keys": 1, "monitor": monitor, **figures}


def raced(**rounds: list[Figures]) -> dict[str, Contestant]:
    found = {}
    for name, made in rounds.items():
        found[name] = Contestant(name, {})
        found[name].rounds = made
        found[name].facts = {"num_samples": 80}
    return found


EVEN = [Pair(round_of(1.25, 0.0), round_of(1.0, 0.0)), Pair(round_of(2.5, 0.0), round_of(2.0, 0.0))]
PAIRS: Pairs = [
    [
        *EVEN,
        *EVEN,
        Pair(round_of(9.0, 0.0), round_of(1.0, 0.0)),  # one that was disturbed
        EVEN[0],
    ],
    [Pair(round_of(1.0, 0.0), round_of(1.0, 0.0))] * 2,
    [Pair(round_of(2.0, 0.0), round_of(1.0, 0.0))] * 2,
]
"""0.8, 1 and 0.5 of resident."""


def test_figures_are_medians_of_the_rounds_own_ratios() -> None:
    found = raced(
        standard=[round_of(4.0, 3.0), round_of(8.0, 6.0), round_of(40.0, 39.0)],
        standard_2_workers=[round_of(2.0, 1.0), round_of(4.0, 2.0), round_of(20.0, 10.0)],
        fast=[round_of(1.0, 0.01), round_of(2.0, 0.02), round_of(2.0, 0.02)],
    )
    document = train_race.result(found, PAIRS, 100, None)
    assert document["speedup"] == 4.0
    assert document["speedup_2_workers"] == 2.0
    assert document["ratio_to_resident"] == pytest.approx(0.8)
    assert document["step_time_ratio"] == pytest.approx(1.25)
    assert document["data_time_ratio"] == 300.0
    assert document["monitor_overhead"] == pytest.approx((1e-4 + 2e-4 / 100) / 1.0)
    wanted = {
        "samples_per_s",
        "data_wait_share",
        "utilisation",
        "cpu_s_per_sample",
        "peak_rss_bytes",
        "epoch_s",
    }
    for name in (STANDARD, STANDARD_WORKERS, FAST):
        assert wanted <= set(document[name])
    fast = document[FAST]
    assert (fast["samples_per_s"], fast["data_wait_share"], fast["utilisation"]) == (4.0, 0.01, 0.99)
    assert (fast["cpu_s_per_sample"], fast["epoch_s"]) == (0.2, 20.0)
    assert document[RESIDENT] == {"samples_per_s": 8.0}
    every = document["every_round"]
    assert every["turns"][FAST] == [8.0, 4.0, 4.0]
    assert every["pairs"][RESIDENT] == [[8.0, 4.0, 8.0, 4.0, 8.0, 8.0], [8.0, 8.0], [8.0, 8.0]]
    busy = raced(**{name: [round_of(1.0, 0.1, busy_s=0.8)] for name in (STANDARD, FAST)})
    assert train_race.result(busy, PAIRS, 100, 10.0)[FAST]["utilisation"] == 0.8


def test_contestants_that_lose_step_are_found_out() -> None:
    class Other(Contestant):
        def running(self) -> Any:
            from contextlib import nullcontext

            return nullcontext(self)

        def run(self, asked: Asked) -> Figures:
            return round_of(0.1, 0.0, keys=self.name)

    with pytest.raises(FlatoutError, match="different samples"):
        train_race.run_in_turns([Other("one", {}), Other("other", {})], SETTING)


class Both(Contestant):
    """Answers with the samples that it is told to; the store takes twice as long."""

    asked: list[Asked]

    def running(self) -> Any:
        from contextlib import nullcontext

        self.asked = []
        return nullcontext(self)

    def run(self, asked: Asked) -> Figures:
        self.asked.append(asked)
        wall_s = asked.steps * (0.5 if asked.is_resident else 1.0)
        return round_of(wall_s, 0.0, steps=asked.steps, keys=self.keys(asked))

    def keys(self, asked: Asked) -> int:
        return 1


def test_pairs_take_turns_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Both] = []

    def make(name: str, entry: dict[str, Any]) -> Both:
        made.append(Both(name, entry))
        return made[-1]

    monkeypatch.setattr(train_pairs, "Contestant", make)
    said: list[str] = []
    found = train_pairs.run_pairs(Entry({}, is_alternating=True), 16, 54.0, said.append)
    assert [len(pairs) for pairs in found] == [8] * NUM_PROCESSES  # 4 x 54 s, 24 s each, and an even number
    assert ratio_of(rate, found) == 0.5
    assert len(said) == NUM_PROCESSES
    for at, each in enumerate(made):
        firsts = [asked.is_resident for asked in each.asked[::2]]
        assert firsts == [(at + number) % 2 == 0 for number in range(9)]
        assert [asked.is_resident for asked in each.asked[1::2]] == [not first for first in firsts]
        assert [asked.is_again for asked in each.asked] == [False, True] * 9
    monkeypatch.setattr(Both, "keys", lambda self, asked: int(asked.is_resident))
    with pytest.raises(FlatoutError, match="different samples"):
        train_pairs.run_pairs(Entry({}, is_alternating=True), 16, 30.0, said.append)


def test_pairs_are_planned_by_the_length_of_a_round() -> None:
    assert [plan_pairs([wall, wall], 4.0) for wall in (10.0, 1.1, 1.0, 0.9, 0.001)] == [6, 6, 8, 8, 40]


def test_who_comes_second_in_a_pair_has_no_gain_of_it() -> None:
    def made(is_resident_first: bool) -> Pair:
        slow, quick = ({"samples": 64, "wall_s": wall_s} for wall_s in (3.0, 2.0))
        return Pair(quick, slow) if is_resident_first else Pair(slow, quick)

    pairs = [made(at % 2 == 1) for at in range(6)]
    assert ratio_of(rate, [pairs, pairs[1:] + pairs[:1]]) == pytest.approx(1.0)
    assert ratio_of(rate, [[pairs[0]] * 6]) == pytest.approx(2 / 3)


def test_a_contestant_is_frozen_between_its_rounds_and_gone_after(config: dict[str, Any]) -> None:
    entry = Entry(config, {"use_fast_loader": False, "num_workers": 1})
    with Contestant("frozen", entry.to_json()).running() as contestant:
        pid = contestant._pid
        assert state_of(pid) == "T"
        figures = contestant.run(Asked(steps=3))
        assert figures["steps"] == 3
        assert state_of(pid) == "T"
        members = [each for each in Path("/proc").glob("[0-9]*") if group_of(each) == pid]
        assert len(members) == 2  # its worker, too
        assert {state_of(int(each.name)) for each in members} == {"T"}
    assert all(group_of(each) != pid or state_of(int(each.name)) == "Z" for each in members)


def state_of(pid: int) -> str:
    """As the kernel has it, once a signal has arrived."""
    for _ in range(10_000):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "TZ":
            break
    return state


def group_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[2])
    except OSError:
        return None


def test_a_contestant_that_fails_says_why(config: dict[str, Any]) -> None:
    wrong = Contestant(
        "wrong", Entry({**config, "manifest": "nowhere.csv"}, {"use_fast_loader": False}).to_json()
    )
    with pytest.raises(FlatoutError, match=r"wrong failed: .*nowhere\.csv"), wrong.running():
        pass


@pytest.mark.parametrize("cases", [TRAIN_CASES, GUIDE_CASES], ids=["train", "guides"])
def test_generated_data_becomes_a_store(cases: Any, tmp_path: Path) -> None:
    task = "sequence_vae"
    config, is_real = cases[task].prepare(task, tmp_path / "none", tmp_path / "case", 40, (("seed", 3),))
    assert not is_real
    resolved = load_config(config)
    assert resolved.seed == 3
    loader = FastDataLoader(config["preprocessed_data_dir"], 4, split="train", num_workers=0)
    assert len(loader.store.positions("train")) >= 40
    assert len(loader.store.positions("val")) >= 5


def test_masks_are_counted(data_dir: Path) -> None:
    path = sorted((data_dir / "mr_hippocampus" / "labels").glob("*.nii.gz"))[0]
    nibabel = pytest.importorskip("nibabel")
    assert count_labelled(path) == int(np.count_nonzero(np.asarray(nibabel.load(path).dataobj)))


ARGUMENTS = ["--seconds", "0.05", "--rounds", "1", "--batch-size", "2", "--json"]
KEYS = {
    *("task", "standard", "standard_2_workers", "fast", "resident", "speedup", "ratio_to_resident"),
    *("data_time_ratio", "monitor_overhead", "machine", "options"),
}


def document_of(task: str, tmp_path: Path, capsys: Any, *more: str) -> dict[str, Any]:
    empty = tmp_path / "empty"
    empty.mkdir()
    arguments = ["--task", task, "--data", str(empty), "--scratch", str(tmp_path), *ARGUMENTS, *more]
    assert main(["bench", "train", *arguments]) == 0
    assert list(tmp_path.iterdir()) == [empty]
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_document_of_one_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of("sequence_vae", tmp_path, capsys, "--accelerator-ms", "1")
    assert set(document) >= KEYS
    assert document["task"] == "sequence_vae"
    assert document["is_real"] is False
    assert document["accelerator_ms"] == 1.0
    assert 0 < document["fast"]["utilisation"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("task", TRAIN_CASES)
def test_every_task_is_measured(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(task, tmp_path, capsys)
    assert set(document) >= KEYS
    for name in ("speedup", "ratio_to_resident", "data_time_ratio", "monitor_overhead"):
        assert document[name] > 0, name


def test_tasks_and_folders_that_are_not_there(tmp_path: Path) -> None:
    assert set(TRAIN_CASES) == set(BUILT_IN)
    with pytest.raises(ConfigError, match="no task 'sound'; there are: cardiac_ct"):
        bench_train(TrainBench(tasks=("sound",)))
    with pytest.raises(FlatoutError, match="is no folder"):
        data_folder(tmp_path / "nowhere")


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = {name: [round_of(1.0, 0.1)] for name in (STANDARD, STANDARD_WORKERS, FAST)}
    asked: list[TrainBench] = []

    def measured(options: TrainBench, say: Callable[[str], None]) -> dict[str, Any]:
        asked.append(options)
        found = train_race.result(raced(**rounds), PAIRS, 100, options.accelerator_ms)
        return {"tasks": [{"task": task, **found} for task in options.tasks], "machine": {}, "options": {}}

    monkeypatch.setattr("flatout.bench.bench_train", measured, raising=False)
    assert main(["bench", "train"]) == 0
    shown = capsys.readouterr().out
    for text in ("cardiac_ct, of resident", ">= 0.97", "waiting for data", "monitoring", "samples/s"):
        assert text in shown
    assert main(["bench", "train", "--accelerator-ms", "10"]) == 0
    shown = capsys.readouterr().out
    for text in ("step time", "<= 1.03", ">= 8", ">= 21", ">= 3"):
        assert text in shown
    assert asked[0].tasks == tuple(BUILT_IN)
    assert asked[1].accelerator_ms == 10.0
    assert main(["bench", "train", "--json"]) == 0
    assert [each["task"] for each in json.loads(capsys.readouterr().out)["tasks"]] == list(BUILT_IN)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "train", "--help"]) == 0
    shown = capsys.readouterr().out
    for option in ("--task", "--accelerator-ms", "--json", "--rounds"):
        assert option in shown
