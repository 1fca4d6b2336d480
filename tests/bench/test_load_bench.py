"""`flatout bench load` at a tiny scale: the form of its document, and that a wrong batch stops the race."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from flatout.bench import LoadBench, bench_load, load, load_bare, load_cold, load_ours, load_peers, load_race
from flatout.bench.load_cases import LOAD_CASES, LoadCase
from flatout.bench.load_cold import drop_cache, measure_capped, measure_cold
from flatout.bench.load_data import store_of, write_store
from flatout.bench.load_feed import measure_accelerator, measure_main_python, measure_many, measure_start
from flatout.bench.load_race import RaceSetting, Runner, run_in_turns
from flatout.bench.load_runner import Contestant
from flatout.cli.main import main
from flatout.errors import ConfigError, FlatoutError, MissingDependencyError
from flatout.loader.local import WINDOW
from flatout.store import StoreReader, verify
from flatout.store.metadata import SHARD_FOLDER

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = {
    "signal": LoadCase("signal", 50, (40,), "float32", 8, {"signal": 50, "signal_500_shards": 7}),
    "image": LoadCase("image", 20, (3, 8, 8), "uint8", 8, {"image": 20}),
    "volume": LoadCase("volume", 10, (1, 4, 6, 6), "float16", 4, {"volume": 3}),
    "ragged": LoadCase("ragged", 40, (30, 2), "float32", 8, {"ragged": 40}, min_length=1),
}


@pytest.mark.parametrize("case", TINY.values(), ids=lambda case: case.name)
def test_samples_differ_and_are_the_same_each_time(case: LoadCase) -> None:
    assert len(set(case.crcs().tolist())) == case.num_samples
    again = LoadCase(**{name: getattr(case, name) for name in case.__dataclass_fields__})
    np.testing.assert_array_equal(case.crcs(), again.crcs())
    assert {sample.dtype.name for sample in case.samples()} == {case.dtype}
    assert all(len(sample) == length for sample, length in zip(case.samples(), case.lengths, strict=True))


@pytest.mark.parametrize("case", TINY.values(), ids=lambda case: case.name)
def test_the_store_of_a_case_is_a_store(case: LoadCase, tmp_path: Path) -> None:
    folder = store_of(tmp_path / "store", case, 7)
    store = StoreReader(folder)
    assert len(store.meta.shards) == -(-case.num_samples // 7)
    for number in range(case.num_samples):
        np.testing.assert_array_equal(store.read(number)["x"], case.sample(number))
        assert store.read(number)["y"] == number
    damaged = {damage.file for damage in verify(folder).damage}
    assert damaged == {"preprocessed_data.h5", "quarantine.jsonl", "preprocessing_stats.json"}


@pytest.mark.parametrize("case", TINY.values(), ids=lambda case: case.name)
def test_the_fast_loader_and_the_limit_run(case: LoadCase, tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", case, 7)
    for who in (load_ours.flatout, load_ours.flatout_crc_always):
        contestant = Contestant(who(case, store, tmp_path), case)
        assert contestant.check() == {"compared": case.num_samples}
        ((count, _, seconds),) = contestant.run(0.01)
        assert count > 0
        assert seconds >= 0.01
    mean_bytes = np.mean([sample.nbytes for sample in case.samples()])
    most_bytes = max(sample.nbytes for sample in case.samples())
    for count, num_bytes, seconds in load_ours.limit(case, store, tmp_path).run(0.02):
        assert count > 0
        assert seconds >= 0.02
        assert mean_bytes * 0.9 <= num_bytes / count <= most_bytes * 1.001


class Played(Runner):
    """A contestant that has two ways to run, whose speed changes from turn to turn."""

    asked: ClassVar[list[tuple[str, float]]] = []

    @contextmanager
    def running(self) -> Iterator[Runner]:
        yield self

    def ask(self, what: str, **details: Any) -> Any:
        if what == "check":
            return {}
        self.asked.append((self.name, details["seconds"]))
        turn = sum(name == self.name for name, _ in self.asked)
        return {"tries": [(100 * turn, 800 * turn, 0.5), (120, 960, 0.5)]}


def test_rounds_take_turns_and_the_better_way_of_each_counts(tmp_path: Path) -> None:
    runners = [Played(name, {"case": "image"}) for name in ("limit@image", "flatout@image")]
    run_in_turns(runners, RaceSetting(tmp_path, 1.5, 2, 1.0, lambda text: None))
    assert {seconds for _, seconds in Played.asked} == {0.5}
    names = [name.partition("@")[0] for name, _ in Played.asked]
    assert sorted(names) == ["flatout"] * 6 + ["limit"] * 6
    pairs = list(zip(names[::2], names[1::2], strict=True))
    assert all(len(set(pair)) == 2 for pair in pairs)  # each once in a turn
    # Turn n has 100 n samples in half a second the one way, 120 the other; the first round has turns 1, 3, 5.
    assert [each["samples_per_s"] for each in runners[0].rounds] == [600.0, 800.0]
    assert runners[0].rounds[0]["gb_per_s"] == pytest.approx(4800e-9)


def test_everybody_is_first_once_and_follows_others() -> None:
    runners = [Runner(name, {}) for name in "abcd"]
    orders = ["".join(runner.name for runner in load_race._order(runners, turn)) for turn in range(8)]
    assert all(sorted(order) == list("abcd") for order in orders)
    assert {order[0] for order in orders} == set("abcd")
    assert {order[order.index("b") - 1] for order in orders if order[0] != "b"} == {"a", "c"}


def test_threads_of_the_limit_count_in_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = TINY["signal"]
    threads = load_ours.BareThreads(case, lambda batch_size: lambda picked: 100)

    def copied(number: int, seconds: float, totals: list[Any]) -> None:
        totals.append(([10, 30][number], [1000, 3000][number], [0.5, 0.25][number]))

    monkeypatch.setattr(threads, "_copy", copied)
    count, num_bytes, seconds = threads._run(2, 0.25)
    assert (count, num_bytes) == (40, 4000)
    assert count / seconds == pytest.approx(10 / 0.5 + 30 / 0.25)


@pytest.mark.parametrize(
    "case", [case for case in TINY.values() if not case.is_ragged], ids=lambda case: case.name
)
def test_the_barest_hand_over_hands_over_samples(case: LoadCase, tmp_path: Path) -> None:
    """Otherwise it were no measure for a loader. It has no order and no epochs, so `check` is not for it."""
    batches = load_bare.hand_over(case, store_of(tmp_path / "store", case, 7), tmp_path)()
    seen: set[int] = set()
    while len(seen) < case.num_samples // case.batch_size * case.batch_size:
        batch = next(batches)
        for row, number in zip(batch["x"], batch["y"].tolist(), strict=True):
            np.testing.assert_array_equal(row, case.sample(number).reshape(case.shape))
        seen |= set(batch["y"].tolist())
    batches.close()


@pytest.mark.parametrize("name", ["ram", "h5py_file", "npy_files"])
@pytest.mark.parametrize("case", TINY.values(), ids=lambda case: case.name)
def test_ordinary_loaders_deliver_the_same(name: str, case: LoadCase, tmp_path: Path) -> None:
    start = getattr(load_peers, name)(case, Path(), tmp_path, num_workers=0)
    assert Contestant(start, case).check() == {"compared": case.num_samples}


@pytest.mark.parametrize("case", TINY.values(), ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["tensordict", "monai", "datasets", "webdataset", "litdata", "spdl", "grain"])
def test_other_libraries_deliver_the_same(name: str, case: LoadCase, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed; 'make bench' installs it")
    function, takes_ragged = load_peers.PEERS[name]
    if case.is_ragged and not takes_ragged:
        pytest.skip(f"{name} has no samples of different lengths")
    start = getattr(load_peers, function)(case, Path(), tmp_path)
    assert Contestant(start, case).check()["compared"] == case.num_samples


def tampered(case: LoadCase, how: str) -> Any:
    def batches() -> Iterator[dict[str, Any]]:
        numbers = list(range(case.num_samples))
        if how == "twice":
            numbers[3] = 4
        rows = [torch.from_numpy(case.sample(number).copy()) for number in numbers]
        if how == "other":
            rows[5].view(-1)[0] += 1
        batch = {
            "x": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            "x_length": torch.tensor([len(row) for row in rows]),
            "y": torch.tensor(numbers),
        }
        if how == "padding":
            batch["x"][int(np.argmin(case.lengths)), -1] = 1
        if how == "length":
            batch["x_length"][0] -= 1
        while True:
            yield batch

    return batches


@pytest.mark.parametrize(
    ("how", "message"),
    [("twice", "came"), ("other", "sample 5 is not"), ("padding", "length"), ("length", "sample 0 has length")],
)
def test_a_wrong_batch_is_found(how: str, message: str) -> None:
    case = TINY["ragged"]
    assert Contestant(tampered(case, "not at all"), case).check()["compared"] == case.num_samples
    with pytest.raises(FlatoutError, match=message):
        Contestant(tampered(case, how), case).check()


@pytest.mark.slow  # 48 s: a process for each contestant
def test_the_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flatout.bench.load_feed.STEPS_S", 0.02)
    arguments = ["--seconds", "0.02", "--rounds", "1", "--share", "0.002", "--samples", "3000", "--no-cold"]
    arguments += ["--case", "signal", "--case", "volume", "--accelerator-ms", "2", "--json"]
    assert main(["bench", "load", "--scratch", str(tmp_path), *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["cases"]) == {"signal", "signal_500_shards", "volume", "volume_uint8"}
    signal = document["cases"]["signal"]
    rates = [signal[who]["samples_per_s"] for who in ("flatout", "limit")]
    assert signal["ratio_to_limit"] == pytest.approx(rates[0] / rates[1])
    assert {"samples_per_s", "gb_per_s"} == set(signal["crc_always"]) == set(signal["hand_over"])
    assert signal["limit_to_itself"] == pytest.approx(1.0)  # a single round
    assert signal["ratio_by_round"] == [pytest.approx(signal["ratio_to_limit"])]
    wanted = signal["hand_over"]["samples_per_s"] / rates[1]
    assert signal["hand_over_to_limit"] == pytest.approx(wanted)
    assert document["cases"]["volume_uint8"]["ratio_to_float16"] > 0
    assert 2 in [each["ms"] for each in document["accelerator"]["signal"]["curve"]]
    assert document["many"]["samples"] == 3000
    assert document["machine"]["cores"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_a_contestant_that_fails_says_why(tmp_path: Path) -> None:
    request = {
        "who": "load_ours:flatout",
        "case": "signal",
        "share": 0.01,
        "store": str(tmp_path),
        "scratch": "",
    }
    with (
        pytest.raises(FlatoutError, match=r"(?s)us failed at 'set up' of 'signal': .*data_metadata\.json"),
        load_race.Runner("us", request).running(),
    ):
        pass


def test_unknown_cases_and_missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no case 'sound'; there are: signal"):
        bench_load(LoadBench(cases=("sound",)))
    monkeypatch.setattr(load_race, "PEERS", {"no-such-peer": ("x", True)})
    with pytest.raises(MissingDependencyError, match="no-such-peer; 'make bench'"):
        bench_load(LoadBench(has_peers=True))


def test_feeding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.bench.load_feed.STEPS_S", 0.05)
    case = TINY["signal"]
    store = store_of(tmp_path / "store", case, 7)
    fed = measure_accelerator(store, case, limit_per_s=1e5, wanted_ms=[3.0], rounds=1)
    assert [each["ms"] for each in fed["curve"]] == [0.04, 0.08, 0.16, 0.32, 1.0, 3.0]
    assert all(0 < each["utilisation"] <= 1 for each in fed["curve"])
    assert fed["lowest"] == min(each["utilisation"] for each in fed["curve"] if each["ms"] >= 1)
    # Twice the limit counts whichever way it is rounded.
    fed = measure_accelerator(store, case, limit_per_s=8 / 0.6002e-3, wanted_ms=[], rounds=1)
    counted = [each["utilisation"] for each in fed["curve"] if each["ms"] >= 1.2]
    assert (len(counted), fed["lowest"]) == (2, min(counted))
    waits = measure_main_python(store, case, [5.0], rounds=1)
    assert [each["ms"] for each in waits["curve"]] == [3.0, 5.0, 10.0]
    assert all(0 <= each["wait_share"] < 1 for each in waits["curve"])
    assert measure_start(store, case, num_epochs=3)["later_epochs_ms"] > 0


def test_many(tmp_path: Path) -> None:
    found = measure_many(tmp_path, 100_000)
    assert found["samples"] == 100_000
    assert found["resume_s"] > 0


def test_cold(tmp_path: Path) -> None:
    found = measure_cold(tmp_path, rounds=1, num_bytes=1_600_000)
    assert set(found) == {"16KB", "150KB"}
    for each in found.values():
        assert each["global"] == pytest.approx(each["mb_per_s"]["global"] / each["mb_per_s"]["sequential"])


def test_dropping_the_cache_makes_pages_cold(tmp_path: Path) -> None:
    store = store_of(tmp_path / "store", LOAD_CASES["signal"].scaled(0.01), 200)
    (path,) = (store / SHARD_FOLDER).iterdir()
    path.read_bytes()
    drop_cache(store)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
    path.read_bytes()
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("a memory file system has nothing to drop")
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_inblock > before


def committed_results() -> list[Path]:
    results = sorted((REPOSITORY / "benchmarks" / "results").rglob("load--*.json"))
    return results or pytest.skip("no result of a quiet machine has been committed yet")


def test_every_committed_result_has_the_form() -> None:
    for path in committed_results():
        document = json.loads(path.read_text())
        names = {name for case in LOAD_CASES.values() for name in case.shards}
        assert set(document["cases"]) == names | {"volume_uint8"}
        for name in names:
            assert {"limit", "flatout", "peers", "ratio_to_limit", "ratio_to_best_peer"} <= set(
                document["cases"][name]
            )


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(committed_results()[0].read_text())
    monkeypatch.setattr("flatout.bench.load.bench_load", lambda options, say: document)
    monkeypatch.setattr("flatout.bench.bench_load", lambda options, say: document, raising=False)
    assert main(["bench", "load", "--peers"]) == 0
    shown = capsys.readouterr().out
    for text in ("share of the limit", "times the best peer", "accelerator busy", "samples/s"):
        assert text in shown


@pytest.mark.parametrize("who", [load_ours.flatout, load_ours.flatout_as_stored])
def test_encoded_samples_are_compared_as_exactly_as_they_are_encoded(who: Any, tmp_path: Path) -> None:
    case = TINY["volume"]
    store = store_of(tmp_path / "store", case, 3, "uint8")
    assert Contestant(who(case, store, tmp_path), case, "uint8").check() == {"compared": case.num_samples}
    moved = write_store(
        tmp_path / "moved",
        case.fields("uint8"),
        ({"x": case.sample(y) + np.float16(0.006), "y": np.asarray(y)} for y in range(case.num_samples)),
        3,
    )
    with pytest.raises(FlatoutError, match=r"sample \d+ is not what was stored"):
        Contestant(who(case, moved, tmp_path), case, "uint8").check()


def test_a_race_with_other_volumes_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only those that are stored as uint8 are others."""

    def turned(folder: Path, case: LoadCase, rows_per_shard: int, encoding: Any = "none") -> Path:
        numbers = range(case.num_samples) if encoding == "none" else reversed(range(case.num_samples))
        samples = ({"x": case.sample(number), "y": np.asarray(at)} for at, number in enumerate(numbers))
        return write_store(folder, case.fields(encoding), samples, rows_per_shard)

    monkeypatch.setattr(load_race, "store_of", turned)
    monkeypatch.setattr(load_race, "_own", lambda case: {})  # they are as they should be, and take ten seconds
    setting = load_race.RaceSetting(tmp_path, 0.01, 1, 0.02, lambda text: None)
    with pytest.raises(FlatoutError, match=r"(?s)as_stored failed at 'check' of 'volume'.*is not what was st"):
        load_race.race(LOAD_CASES["volume"].scaled(0.02), setting, has_peers=False)


def test_the_shard_local_order_has_many_windows(tmp_path: Path) -> None:
    """In one window it would be the global order."""
    measure_cold(tmp_path, rounds=1, num_bytes=2_000_000)
    num_shards = len(list((tmp_path / "cold-16KB" / SHARD_FOLDER).iterdir()))
    assert num_shards >= 4 * WINDOW
    assert load_cold.COLD_SHARDS >= 16 * WINDOW


def capped(tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch, rounds: int = 1) -> dict[str, Any]:
    """In a control group that limits nothing: a folder in its place."""
    monkeypatch.setattr(load_cold, "CGROUP", group)
    return measure_capped(tmp_path, rounds, 1_600_000, 1 << 30)


def test_what_cannot_be_limited_is_skipped_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = capped(tmp_path, tmp_path / "nowhere", monkeypatch)
    assert found["skipped"].startswith("no memory cgroup can be made here: ")


def test_a_process_that_cannot_be_put_into_its_group_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = load_cold._rows_store(tmp_path / "rows", 16_000, 160_000, 5)
    with pytest.raises(load_cold.NoCapError, match="No such file or directory"):
        load_cold._capped_rate(store, "sequential", tmp_path / "no" / "cgroup.procs")


def test_every_round_is_capped_and_the_median_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "group" / "memory").mkdir(parents=True)
    rates = iter([10.0, 1.0, 20.0, 6.0, 40.0, 99.0])
    monkeypatch.setattr(load_cold, "_capped_rate", lambda *_: next(rates))
    found = capped(tmp_path, tmp_path / "group", monkeypatch, rounds=3)
    assert found == {"mb_per_s": {"sequential": 20.0, "global": 6.0}, "ratio": 0.3}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os.kill(os.getpid(), 9)", r"ended with -9 \(killed: .*memory"),
        ("raise OSError('boom')", "ended with 1: .*boom"),
    ],
)
def test_a_capped_process_that_dies_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    run = subprocess.run
    command = [sys.executable, "-c", f"import os; {code}"]
    monkeypatch.setattr(load_cold.subprocess, "run", lambda _, **others: run(command, **others))
    (tmp_path / "group" / "memory").mkdir(parents=True)
    with pytest.raises(FlatoutError, match=rf"(?s)capped, sequential: the process {words}"):
        capped(tmp_path, tmp_path / "group", monkeypatch)


def test_cold_and_capped_run_as_many_rounds_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    figures = dict.fromkeys(("global", "shard_local", "announced"), 1.0)
    monkeypatch.setattr(load, "measure_cold", lambda _, rounds: asked.append(rounds) or {"16KB": figures})
    monkeypatch.setattr(load, "measure_capped", lambda _, rounds: asked.append(rounds) or {"ratio": 1.0})
    load._cold(tmp_path, LoadBench(rounds=5), lambda text: None)
    assert asked == [5, 5]
