"""Remedies at once: which go together, what is kept of them, what one that fails leaves of the others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.doctor import scripts
from tests.doctor.made_records import made_record
from tests.doctor.running import FEW
from tests.doctor.test_try import record_of, remedy, traced, write_rows
from torch import distributed

from flatout.doctor.ceiling.sources import LoaderSource
from flatout.doctor.child.watch import WATCH
from flatout.doctor.record import Remedy, Trial
from flatout.doctor.steps.phases import Phases
from flatout.doctor.trial import rounds
from flatout.doctor.trial.observe import observe_and_try
from flatout.doctor.trial.ranks import refused_by_any
from flatout.doctor.trial.referee import Referee, judged
from flatout.doctor.trial.switches import SwitchedSource, reason_of
from flatout.doctor.trial.together import contradict, going_together, settings_kept


def tried(name: str, gain: float, *, is_kept: bool = True, **settings: Any) -> Remedy:
    trial = Trial(gain, 0.9 * gain, 1.1 * gain, is_kept)
    return Remedy(name, "because", 2.0, f"cost of {name}", f"do {name}", settings, trial=trial)


WORKERS = {"num_workers": 2, "persistent_workers": True}
PRELOAD = {"cache": True, "num_workers": 0}


def test_what_cannot_be_had_at_once() -> None:
    assert contradict(WORKERS, PRELOAD)
    assert contradict({"persistent_workers": True}, PRELOAD)
    assert contradict(PRELOAD, {"prefetch_factor": 8})
    assert not contradict(WORKERS, {"cache": True})
    assert not contradict(PRELOAD, {"cache": True, "num_threads": 4})


def test_the_better_of_two_that_contradict_stays() -> None:
    all_tried = [
        tried("workers", 1.5, **WORKERS),
        tried("preload", 3.0, **PRELOAD),
        tried("threads", 1.2, num_threads=2),
    ]
    assert [each.name for each in going_together(all_tried)] == ["preload", "threads"]
    assert settings_kept(all_tried) == {**PRELOAD, "num_threads": 2}


def test_of_what_was_tried_at_once_either_all_or_one_is_kept() -> None:
    alone = [tried("cache", 2.0, cache=True), tried("workers", 1.5, **WORKERS)]
    both = tried("together", 2.6, cache=True, **WORKERS)
    assert settings_kept([*alone, both]) == {"cache": True, **WORKERS}
    assert settings_kept([*alone, tried("together", 1.9, is_kept=False, cache=True, **WORKERS)]) == {
        "cache": True
    }


def answered(folder: Path, number: int, referee: Referee) -> list[dict[str, Any]]:
    (folder / f"ask-{number}").touch()
    referee.answer(folder)
    found: list[dict[str, Any]] = json.loads((folder / f"trials-{number}.json").read_text())
    return found


def steps(**seconds: list[float]) -> Any:
    """A trace with blocks of several remedies beside the script as it is, which takes 3 s a step."""
    first, *others = (traced(*[(3.0, s) for s in each], name=name) for name, each in seconds.items())
    for other in others:
        first.blocks += [block for block in other.blocks if block.name != "base"]
    return first


def test_a_combination_leaves_out_what_contradicts_the_best(tmp_path: Path) -> None:
    asked = [remedy("workers", **WORKERS), remedy("preload", **PRELOAD), remedy("threads", num_threads=2)]
    referee = Referee(lambda folder: record_of(*asked))
    answered(tmp_path, 0, referee)
    write_rows(tmp_path, steps(workers=[2.0, 2.0], preload=[1.0, 1.0], threads=[2.5, 2.5]))
    (together,) = answered(tmp_path, 1, referee)
    assert together["settings"] == {**PRELOAD, "num_threads": 2}
    told = referee.finish(record_of(*asked), tmp_path).remedies[-1]
    assert told.evidence.startswith("preload and threads")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([0.5, 0.5, 0.52], ""),
        ([0.9, 1.0, 0.8], "cache alone is as fast, as far as can be told"),
        ([1.2, 1.2, 1.21], "slower than cache alone, beyond noise"),
    ],
)
def test_several_at_once_must_beat_the_best_alone_beyond_noise(
    tmp_path: Path, seconds: list[float], told: str
) -> None:
    asked = [remedy("cache", cache=True), remedy("threads", num_threads=2)]
    referee = Referee(lambda folder: record_of(*asked))
    answered(tmp_path, 0, referee)
    write_rows(tmp_path, steps(cache=[1.0] * 3, threads=[2.0] * 3))
    answered(tmp_path, 1, referee)
    write_rows(tmp_path, steps(cache=[1.0] * 3, threads=[2.0] * 3, together=seconds))
    cache, threads, together = referee.finish(record_of(*asked), tmp_path).remedies
    assert cache.trial is not None
    assert threads.trial is not None
    assert together.trial is not None
    assert together.trial.is_kept is (not told)
    assert together.trial.note == told
    is_slower = told.startswith("slower")
    assert cache.trial.is_kept
    assert cache.how == asked[0].how
    assert threads.trial.is_kept is not is_slower
    assert threads.how.startswith("instead of cache, not beside it") is is_slower
    assert (together.how == "not at once; cache alone") is is_slower
    assert settings_kept((cache, threads, together)) == (
        {"num_threads": 2, "cache": True} if not told else {"cache": True}
    )


def test_a_cache_of_random_samples_is_not_kept_and_says_why() -> None:
    trace = traced((2.0, 1.0), (2.0, 1.0), (2.0, 1.0), name="cache", agreements={"cache": None})
    found = judged(trace, Phases(trace), remedy("cache", cache=True))
    assert found is not None
    assert not found.is_kept
    assert "random" in found.note
    trace = traced((2.0, 1.0), (2.0, 1.0), (2.0, 1.0), agreements={"workers": None})
    workers = judged(trace, Phases(trace), remedy("workers", num_workers=2))
    assert workers is not None
    assert workers.is_kept


def session_of(base: LoaderSource, time_limit_s: float = 120.0, step_s: float = 0.01) -> Any:
    settings = SimpleNamespace(time_limit_s=time_limit_s)
    return SimpleNamespace(base=base, settings=settings, mean_step_s=step_s, evaluate_batches=None)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(WATCH, "add", found.append)
    return found


def asked_for(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "settings": {}} for name in names]


@pytest.mark.parametrize("error", [KeyError("x"), RuntimeError("worker died"), AttributeError("no pickle")])
def test_one_remedy_that_fails_is_one_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any], error: Exception
) -> None:
    base = LoaderSource("base", lambda: iter([1]), next)
    session = session_of(base)

    def make(_: Any, name: str, settings: Mapping[str, Any], folder: Path) -> SwitchedSource:
        if name == "bad":
            raise error
        return SwitchedSource(name, base, settings, session)

    monkeypatch.setattr(rounds, "_source", make)
    sources = rounds._sources(session, asked_for("good", "bad", "better"), tmp_path)
    assert [source.name for source in sources] == ["good", "better"]
    assert rows == [("refused", "bad", reason_of(error))]
    assert type(error).__name__ in rows[0][2]


def test_a_remedy_that_fails_later_leaves_the_script_its_batches(rows: list[Any]) -> None:
    base = LoaderSource("base", lambda: iter([1, 2]), next)

    def advance(iterator: Any) -> Any:
        raise RuntimeError(
            "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback\n\nKeyError: 'x'\n"
        )

    source = SwitchedSource("workers", LoaderSource("workers", lambda: iter([]), advance), {}, session_of(base))
    assert [source.next(), source.next()] == [1, 2]
    assert rows == [("refused", "workers", "RuntimeError: KeyError: 'x'")]
    source.close()
    assert base.next() == 1


def test_remedies_for_which_there_is_no_time_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any]
) -> None:
    base = LoaderSource("base", lambda: iter([1]), next)
    session = session_of(base, step_s=10.0)
    monkeypatch.setattr(
        rounds, "_source", lambda s, name, given, folder: SwitchedSource(name, base, given, session)
    )
    sources = rounds._sources(session, asked_for("first", "second"), tmp_path)
    assert [source.name for source in sources] == ["first"]
    assert [row[1] for row in rows] == ["second"]
    assert "--time-limit" in rows[0][2]


def test_what_one_rank_refuses_all_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused_by_any({"cache": "no"}) == {"cache": "no"}
    others = [{"cache": "no disk"}, {}, {"cache": "random", "workers": "no memory"}]

    def gather(told: list[Any], own: Any) -> None:
        told[:] = [others[0], own, others[2]]

    for name, value in (("is_initialized", True), ("get_world_size", 3)):
        monkeypatch.setattr(distributed, name, lambda value=value: value)
    monkeypatch.setattr(distributed, "all_gather_object", gather)
    assert refused_by_any({}) == {"cache": "no disk", "workers": "no memory"}


def test_each_rank_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folders: list[Path] = []

    def made(session: Any, trials: Any, folder: Path) -> list[Any]:
        folders.append(folder)
        return []

    monkeypatch.setattr(WATCH.log, "folder", tmp_path)
    monkeypatch.setattr(rounds, "_sources", made)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(rounds, "_ask", lambda session, folder, number: [{}][number:])
        assert list(rounds.trial_blocks(session_of(LoaderSource("base", lambda: iter([]), next)))) == []
    assert len(set(folders)) == 2


@pytest.mark.slow
def test_ranks_of_torchrun_try_the_same_remedies(tmp_path: Path) -> None:
    """Each caches other samples: in one folder the second rank would refuse, and leave the first alone."""
    path = scripts.write(tmp_path, scripts.RANKS.replace("Slow(512, 0.0005)", "Slow(512, 0.004)"))
    arguments = ["--nproc_per_node=2", "--master_port=29597", str(path)]
    settings = replace(FEW, tries=True)
    record = observe_and_try(None, "torch.distributed.run", arguments, settings, stdout=subprocess.DEVNULL)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    (trial,) = [each.trial for each in record.remedies if each.name == "cache"]
    assert trial is not None
    assert trial.low < trial.high
    assert trial.losses_agree


@pytest.mark.parametrize(
    ("device", "settings", "told"),
    [
        ("cpu", {}, "this training is on the CPU"),
        ("cuda:0", {"num_workers": 2}, "are on already"),
        ("cuda:0", {"matmul_precision": "high"}, None),
    ],
)
def test_flags_that_leave_nothing_to_try_are_told(
    device: str, settings: Mapping[str, Any], told: str | None, tmp_path: Path
) -> None:
    record = replace(made_record(facts={"device": device}), remedies=(tried("one", 1.5, **settings),))
    for with_flags in (True, False):
        found = Referee(lambda folder: record, with_flags=with_flags).finish(record, tmp_path).warnings
        assert [told in text for text in found if told] == ([True] if told and with_flags else [])
