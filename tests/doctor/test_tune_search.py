"""The search against machines that are simulated: what is found, what is kept, and how few trials it takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.doctor.tune.choose import choose, gain_of
from flatout.doctor.tune.facts import Facts
from flatout.doctor.tune.interval import ratio_of, spread_of
from flatout.doctor.tune.model import Service, best_workers, predict_batch_s
from flatout.doctor.tune.options import TuneOptions, parse_seconds
from flatout.doctor.tune.race import MOST_ROUNDS, Entry, Failed, Slice, race
from flatout.doctor.tune.search import Search
from flatout.doctor.tune.setting import AS_IT_IS, Setting, keys_of
from flatout.doctor.tune.space import Space
from flatout.errors import ConfigError, FlatoutError

GIB = 1 << 30
START = Setting(num_workers=1, prefetch_factor=4, batch_size=8)


def facts(**changes: Any) -> Facts:
    known = Facts(
        is_fast=True,
        start=START,
        consumer="nothing",
        num_samples=1000,
        num_all=1200,
        epochs=10,
        sample_bytes=1 << 20,
        stored_bytes=GIB,
        num_shards=4,
        num_cores=4,
        free_bytes=16 * GIB,
        shared_bytes=8 * GIB,
        has_cuda=False,
        is_shuffled=True,
        is_compressed=False,
        cache_size=100,
    )
    return replace(known, **changes)


def slice_of(rate: float, cpu_share: float = 0.2) -> Slice:
    return Slice(rate, 10, 0.3, 0.5, cpu_share, 1 << 20, 0.1)


class Simulated:
    """A machine whose rates follow a service, with noise; every stretch takes a second of its clock."""

    def __init__(self, service: Service, noise: float = 0.0, seed: int = 0) -> None:
        self.service = service
        self.now_s = 0.0
        self.tried: list[Setting] = []
        self._noise = noise
        self._random = np.random.default_rng(seed)

    def rate(self, setting: Setting) -> float:
        shallow = 0.8 if setting.num_workers and setting.prefetch_factor < 4 else 1.0
        factor = {"float16": 1.5, "uint8": 1.8, "zstd": 0.3}.get(setting.encoding, 1.0)
        if setting.cache == "memory":
            factor = 20.0
        return shallow * factor * setting.batch_size / predict_batch_s(self.service, setting.num_workers)

    def __call__(self, setting: Setting, *, on_sample: bool = False) -> Slice | Failed:
        self.now_s += 1.0
        self.tried.append(setting)
        share = min(1.0, setting.num_workers / self.service.num_cores)
        return slice_of(self.rate(setting) * math.exp(self._noise * self._random.standard_normal()), share)

    def clock(self) -> float:
        return self.now_s


def service(is_fast: bool = True, **changes: Any) -> Service:
    costs = {"make_s": 0.03, "make_cpu_s": 0.03, "step_s": 0.01, "step_cpu_s": 0.01, "hand_s": 0.001}
    return Service(is_fast, 4, 8, **{**costs, **changes})


def search(
    machine: Simulated,
    known: Facts,
    allow: frozenset[str] = frozenset(),
    *,
    cpu: float = 1.0,
    budget_s: float = 600.0,
) -> Search:
    space = Space(known, machine.service, 8 * GIB, allow)
    return Search(space, machine, budget_s=budget_s, cpu_budget=cpu, clock=machine.clock)


@given(
    make_s=st.floats(1e-4, 1.0),
    step_s=st.floats(0.0, 1.0),
    num_cores=st.integers(1, 32),
    is_fast=st.booleans(),
    io_share=st.floats(0.0, 1.0),
)
def test_the_model_is_sane(
    make_s: float, step_s: float, num_cores: int, is_fast: bool, io_share: float
) -> None:
    costs = Service(is_fast, num_cores, 8, make_s, make_s * io_share, step_s, step_s, 1e-5)
    predicted = [predict_batch_s(costs, number) for number in range(17)]
    assert predicted[0] == step_s + make_s
    assert all(more <= fewer + 1e-12 for fewer, more in pairwise(predicted[1:]))
    assert min(predicted) >= max(step_s, (make_s * io_share + step_s) / num_cores) - 1e-12
    best = best_workers(costs, 16)
    assert predicted[best] <= min(predicted) * 1.02
    assert all(each > min(predicted) * 1.02 for each in predicted[:best])


@given(
    truth=st.floats(0.2, 5.0),
    noise=st.floats(0.001, 0.1),
    num=st.integers(3, 12),
    seed=st.integers(0, 1000),
)
def test_an_interval_holds_its_middle_and_shared_disturbance_cancels(
    truth: float, noise: float, num: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    rounds = np.exp(generator.standard_normal(num))  # a machine that is five times slower at times
    theirs = (100 * rounds).tolist()
    ours = (100 * truth * rounds * np.exp(noise * generator.standard_normal(num))).tolist()
    found = ratio_of(ours, theirs)
    assert found.low <= found.high
    assert abs(math.log(found.middle / truth)) < 5 * noise
    assert math.log(found.high / found.low) < 10 * noise * 4.4
    assert spread_of(theirs).high / spread_of(theirs).low >= 1.0


def test_a_single_value_is_never_sure() -> None:
    found = spread_of([3.0])
    assert (found.middle, found.low, found.high) == (pytest.approx(3.0), 0.0, math.inf)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        found = ratio_of(np.exp(0.1 * generator.standard_normal(5)).tolist(), [1.0] * 5)
        hits += found.low <= 1.0 <= found.high
    assert 0.91 <= hits / 400 <= 0.98


def test_a_race_leaves_out_what_is_clearly_slower() -> None:
    machine = Simulated(service(), noise=0.02)
    settings_ = [START.changed(num_workers=n) for n in (0, 1, 2, 3)]
    entries = race(settings_, machine)
    assert len(entries[0].slices) < MOST_ROUNDS
    assert entries[0].is_beaten
    best = max(entries, key=lambda entry: entry.rate)
    assert best.setting.num_workers == 3
    assert not best.is_beaten


def test_a_race_ends_with_its_deadline_and_skips_what_fails() -> None:
    machine = Simulated(service(), noise=0.3)

    def measure(setting: Setting) -> Slice | Failed:
        return Failed("does not fit") if setting.num_workers == 2 else machine(setting)

    entries = race(
        [START.changed(num_workers=n) for n in (1, 2, 3)], measure, deadline_s=3.0, clock=machine.clock
    )
    assert [entry.failure for entry in entries] == [None, "does not fit", None]
    assert [len(entry.slices) for entry in entries] == [2, 0, 2]


@pytest.mark.parametrize("seed", range(20))
def test_equal_settings_are_never_exchanged_by_noise_for_long(seed: int) -> None:
    """All are equally fast: what stands stays, unless luck goes on to the proof."""
    flat = Simulated(service(make_s=0.0, make_cpu_s=0.0, hand_s=0.0), noise=0.05, seed=seed)
    flat.rate = lambda setting: 100.0  # type: ignore[method-assign]
    found = search(flat, facts(), frozenset({"encoding", "batch_size"})).run()
    assert found.setting == START or (found.gain is not None and found.gain.low > 1.0)


def test_noise_alone_rarely_changes_anything() -> None:
    changed = 0
    for seed in range(40):
        flat = Simulated(service(), noise=0.05, seed=seed)
        flat.rate = lambda setting: 100.0  # type: ignore[method-assign]
        changed += search(flat, facts()).run().setting != START
    assert changed <= 2


@given(
    make_ms=st.floats(1.0, 200.0),
    step_ms=st.floats(0.0, 50.0),
    num_cores=st.integers(2, 16),
    is_fast=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, derandomize=True)  # the noise is random enough
def test_it_comes_close_to_the_best_in_few_trials(
    make_ms: float, step_ms: float, num_cores: int, is_fast: bool, seed: int
) -> None:
    costs = Service(is_fast, num_cores, 8, make_ms / 1e3, make_ms / 1e3, step_ms / 1e3, step_ms / 1e3, 1e-4)
    machine = Simulated(costs, noise=0.02, seed=seed)
    known = facts(is_fast=is_fast, num_cores=num_cores, sample_bytes=100 << 20)  # nothing fits into memory
    found = search(machine, known).run()
    space = Space(known, costs, 8 * GIB)
    every = [
        START.changed(num_workers=n, prefetch_factor=d)
        for n in range(space.most_workers + 1)
        for d in (1, 2, 4, 8)
        if space.fits(START.changed(num_workers=n, prefetch_factor=d))
    ]
    assert machine.rate(found.setting) >= 0.9 * max(map(machine.rate, every))
    assert len(machine.tried) <= 75


def test_nobody_is_left_out_after_one_stretch() -> None:
    taken: list[Setting] = []

    def measure(setting: Setting) -> Slice:
        taken.append(setting)
        is_disturbed = setting.num_workers == 3 and taken.count(setting) == 1
        return slice_of(0.01 if is_disturbed else 100.0 * (1 + setting.num_workers))

    entries = race([START.changed(num_workers=n) for n in (1, 2, 3)], measure)
    assert all(len(entry.slices) >= 2 for entry in entries)
    assert not entries[2].is_beaten


def test_workers_are_found_for_the_encoding_that_is_taken() -> None:
    """As the store is, memory is the limit and workers change nothing; restoring uint8 is work for several."""
    machine = Simulated(service(), noise=0.02)
    rates = {AS_IT_IS: (100, 100, 100, 100), "uint8": (60, 120, 180, 240)}

    def rate(setting: Setting) -> float:
        return float(rates.get(setting.encoding, (50,) * 4)[min(setting.num_workers, 3)])

    machine.rate = rate  # type: ignore[method-assign]
    found = search(machine, facts(encodable=("x",)), frozenset({"encoding"})).run()
    assert (found.setting.encoding, rate(found.setting)) == ("uint8", 240)


def test_more_workers_than_the_model_knows_of_are_found() -> None:
    machine = Simulated(service(make_s=0.02, make_cpu_s=0.02, step_s=0.0, step_cpu_s=0.0), noise=0.02)
    machine.rate = lambda setting: 100.0 * (1 + setting.num_workers)  # type: ignore[method-assign]
    assert Space(facts(), machine.service, GIB).workers(START)[-1].num_workers < 8
    assert search(machine, facts()).run().setting.num_workers == 8


def test_noise_does_not_hide_what_is_twice_as_fast() -> None:
    """Stretches that differ by a quarter: nothing is beyond noise in three rounds."""
    poor = 0
    for seed in range(20):
        machine = Simulated(service(), noise=0.25, seed=seed)
        machine.rate = lambda setting: 200.0 if setting.encoding == "uint8" else 100.0  # type: ignore[method-assign]
        found = search(machine, facts(encodable=("x",)), frozenset({"encoding"})).run()
        poor += machine.rate(found.setting) < 150
    assert poor <= 2


@pytest.mark.parametrize("is_start", [True, False])
def test_a_finalist_that_fails_changes_nothing(is_start: bool) -> None:
    machine, made = Simulated(service(), noise=0.01), []

    def trial(setting: Setting, *, on_sample: bool = False) -> Slice | Failed:
        is_proof = made[0].stages[-1].name == "proof"
        return Failed("gone") if is_proof and (setting == START) == is_start else machine(setting)

    space = Space(facts(), machine.service, 8 * GIB)
    made.append(Search(space, trial, budget_s=600, cpu_budget=1.0, clock=machine.clock))
    found = made[0].run()
    assert (found.setting, found.stages[-1].taken) == (START, START)
    assert "could not be measured again" in found.stages[-1].reason


def test_what_there_was_no_time_for_is_told() -> None:
    machine = Simulated(service(), noise=0.02)
    known = facts(encodable=("x",))
    found = search(machine, known, frozenset({"encoding", "batch_size"}), budget_s=5.0).run()
    assert found.skipped["num_workers"] == "the time was up"


@pytest.mark.parametrize("budget_s", [40, 60, 90, 150])
@pytest.mark.parametrize("seed", range(5))
def test_the_budget_is_kept(budget_s: float, seed: int) -> None:
    """A trial takes a second here, the first four rounds of the proof eight."""
    machine = Simulated(service(), noise=0.2, seed=seed)
    search(machine, facts(encodable=("x",)), frozenset({"encoding", "batch_size"}), budget_s=budget_s).run()
    assert machine.now_s <= budget_s


@pytest.mark.parametrize("copy_s", [2.0, 6.0])
def test_copies_are_made_before_their_race_and_within_the_time(copy_s: float) -> None:
    """Their seconds were once taken for those of a stretch, and the race of 5 ended after a single round."""
    machine, made = Simulated(service(), noise=0.01), set()

    def get_ready(setting: Setting, *, on_sample: bool) -> None:
        assert on_sample
        if setting.encoding not in made:
            made.add(setting.encoding)
            machine.now_s += copy_s

    space = Space(facts(encodable=("x",)), machine.service, 8 * GIB, frozenset({"encoding"}))
    kinds = {"cpu_budget": 1.0, "get_ready": get_ready, "clock": machine.clock}
    found = Search(space, machine, budget_s=60.0, **kinds).run()
    race = next(stage for stage in found.stages if stage.name == "encoding")
    assert race.taken is not None
    assert race.taken.encoding != AS_IT_IS
    assert {entry.setting.encoding for entry in race.entries} == made
    assert ("encoding" in found.skipped) == (copy_s > 5)
    assert machine.now_s <= 60


def test_further_workers_that_had_no_time_are_not_told_as_untried() -> None:
    for budget_s in range(8, 40):
        found = search(Simulated(service(), noise=0.02), facts(), budget_s=budget_s).run()
        raced = {stage.name for stage in found.stages}
        assert not raced & found.skipped.keys() - {"encoding", "cache"}


def test_what_changes_results_needs_permission() -> None:
    machine = Simulated(service(), noise=0.01)
    known = facts(encodable=("x",))
    assert search(machine, known).run().setting.encoding == AS_IT_IS
    found = search(machine, known, frozenset({"encoding"})).run()
    assert found.setting.encoding == "uint8"
    assert found.gain is not None
    assert found.gain.low > 1.5
    assert {setting.batch_size for setting in machine.tried} == {8}


def test_samples_in_memory() -> None:
    machine = Simulated(service(is_fast=False), noise=0.01)
    found = search(machine, facts(is_fast=False)).run()
    assert found.setting.cache == "memory"
    huge = facts(is_fast=False, sample_bytes=1 << 25)
    assert search(Simulated(service(is_fast=False)), huge).run().setting.cache == "none"


def test_the_cpu_budget_holds() -> None:
    machine = Simulated(service(make_s=1.0, make_cpu_s=1.0), noise=0.01)
    found = search(machine, facts(), cpu=0.5).run()
    assert found.setting.num_workers == 2
    over = search(Simulated(service(), noise=0.01), facts(start=START.changed(num_workers=4)), cpu=0.3).run()
    assert over.setting.num_workers < 4


def test_who_is_over_the_cpu_budget_leaves_nobody_out() -> None:
    rates, shares = {0: 10.0, 1: 25.0, 4: 100.0}, {0: 0.0, 1: 0.2, 4: 0.9}
    entries = race(
        [START.changed(num_workers=n) for n in rates],
        lambda setting: slice_of(rates[setting.num_workers], shares[setting.num_workers]),
        cpu_budget=0.5,
    )
    choice = choose(entries, START.changed(num_workers=0), 0.5)
    assert choice is not None
    assert choice.entry.setting.num_workers == 1


def test_order_is_only_tried_where_it_can_matter() -> None:
    space = Space(facts(), service(), GIB, frozenset({"order"}))
    assert space.order(START) == [START]
    large = Space(facts(stored_bytes=64 * GIB), service(), GIB, frozenset({"order"}))
    assert [setting.order for setting in large.order(START)] == ["global", "shard_local"]
    weighted = START.changed(order="weighted")
    assert large.order(weighted) == [weighted]
    assert Space(facts(stored_bytes=64 * GIB), service(), GIB).order(START) == [START]


@given(
    num=st.integers(0, 16),
    depth=st.integers(1, 32),
    size=st.integers(1, 256),
    sample=st.integers(1, 1 << 28),
    memory=st.integers(1 << 20, 1 << 34),
)
def test_no_candidate_is_over_the_memory(num: int, depth: int, size: int, sample: int, memory: int) -> None:
    now = Setting(num, depth if num else 1, size)
    allow = frozenset({"batch_size", "encoding", "order"})
    space = Space(facts(sample_bytes=sample, encodable=("x",)), service(), memory, allow)
    for candidates in (
        space.workers,
        space.prefetch,
        space.cache,
        space.order,
        space.encoding,
        space.batch_size,
    ):
        for setting in candidates(now):
            ahead = max(1, setting.num_workers * setting.prefetch_factor) * setting.batch_size * sample
            assert setting == now or ahead <= memory


def test_ctrl_c_leaves_the_best_so_far() -> None:
    machine = Simulated(service(), noise=0.01)

    def interrupted(after: int) -> Callable[..., Slice | Failed]:
        def trial(setting: Setting, *, on_sample: bool = False) -> Slice | Failed:
            if len(machine.tried) == after:
                raise KeyboardInterrupt
            return machine(setting)

        return trial

    complete = search(Simulated(service(), noise=0.01), facts()).run()
    space = Space(facts(), service(), 8 * GIB)
    late = Search(space, interrupted(14), budget_s=600, cpu_budget=1.0, clock=machine.clock).run()
    assert not late.is_complete
    assert late.setting.num_workers == complete.setting.num_workers
    machine.tried.clear()
    early = Search(space, interrupted(0), budget_s=600, cpu_budget=1.0, clock=machine.clock).run()
    assert (early.setting, early.is_complete) == (START, False)


def test_settings_that_cannot_be_measured_are_told() -> None:
    space = Space(facts(), service(), 8 * GIB)
    with pytest.raises(FlatoutError, match="as they are cannot be measured: no disk"):
        Search(space, lambda setting, on_sample: Failed("no disk"), budget_s=9, cpu_budget=1.0).run()


def test_workers_are_kept_where_starting_them_is_slow() -> None:
    machine = Simulated(service(is_fast=False))
    known = facts(is_fast=False, is_persistent=False, num_samples=100, sample_bytes=1 << 25)
    assert search(machine, known).run().keeps_workers
    assert not search(machine, replace(known, is_persistent=True)).run().keeps_workers
    assert not search(machine, replace(known, num_samples=10**7)).run().keeps_workers


def test_the_simplest_of_those_alike_is_taken() -> None:
    entries = [
        Entry(START.changed(num_workers=n), [slice_of(rate * f) for f in (1, 1.01, 0.99)])
        for n, rate in ((1, 50.0), (2, 100.0), (3, 101.0))
    ]
    choice = choose(entries, START, 1.0)
    assert choice is not None
    assert choice.entry.setting.num_workers == 2
    assert choice.reason == "as fast as the fastest, and simpler"
    gain = gain_of(entries, choice.entry.setting, START)
    assert gain is not None
    assert gain.middle == pytest.approx(2.0)
    assert choose([Entry(START, failure="x")], START, 1.0) is None


def test_keys() -> None:
    assert keys_of(START, START, ["x"]) == {}
    other = START.changed(num_workers=0, batch_size=16, order="shard_local", encoding="uint8")
    assert keys_of(other, START, ["x"]) == {
        "train_ds.num_workers": 0,
        "train_ds.batch_size": 16,
        "order": "shard_local",
        "fields.x.encoding": "uint8",
        "fields.x.compression": "none",
    }
    assert keys_of(START.changed(cache="decoded"), START, [], 77)["cache_config.cache_size"] == 77
    none = START.changed(num_workers=0)  # its one batch ahead is no setting of the config
    assert keys_of(none.changed(num_workers=2), none, []) == {
        "train_ds.num_workers": 2,
        "train_ds.prefetch_factor": 1,
    }


def test_facts_and_settings_survive_the_way_between_processes() -> None:
    known = facts(encodable=("a", "b"), notes=("one",), machine={"num_cores": 2})
    assert Facts.from_json(json.loads(json.dumps(known.to_json()))) == known


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("90", 90), ("1.5m", 90), ("2 min", 120), ("1h", 3600)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3s", "5 days", "1e3"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ConfigError, match="wanted one such as 60s"):
        parse_seconds(text)


@pytest.mark.parametrize(
    "wrong", [{"allow": frozenset({"seed"})}, {"budget_s": 0.0}, {"cpu_budget": 1.5}, {"memory_budget": 0.0}]
)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TuneOptions(**wrong)


def test_what_is_likely_faster_is_taken_where_results_stay() -> None:
    """The 95 % interval of the ratio holds 1, that of 80 % does not: not beyond noise, but likely."""
    found = search(Simulated(service()), facts(), cpu=0.5)
    before = Entry(START, [slice_of(100.0) for _ in range(4)])
    after = Entry(START.changed(num_workers=2), [slice_of(rate) for rate in (101.0, 150.0, 110.0, 160.0)])
    found._now = after.setting
    assert choose([before, after], START, 1.0).entry is before  # type: ignore[union-attr]
    assert found._may_be_taken([before, after])
    unclear = Entry(after.setting, [slice_of(rate) for rate in (70.0, 150.0, 110.0, 130.0)])
    assert not found._may_be_taken([before, unclear])
    busy = Entry(after.setting, [slice_of(each.samples_per_s, 0.6) for each in after.slices])
    assert not found._may_be_taken([before, busy])
    found._now = after.setting.changed(encoding="uint8")
    assert not found._may_be_taken([before, after])
