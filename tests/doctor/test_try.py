"""Trials: changed loaders, what is judged from blocks, what is asked of the script."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from flatout.doctor.record import DoctorRecord, Exit, Remedy
from flatout.doctor.steps.phases import Phases
from flatout.doctor.steps.trace import BlockRow, Trace
from flatout.doctor.trial.agreement import batches_agree
from flatout.doctor.trial.loaders import changed_loader
from flatout.doctor.trial.referee import Referee, judged


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index * index)), index


class Noisy(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(3), index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0))


def test_settings_change_only_what_they_name(tmp_path: Path) -> None:
    loader = DataLoader(Squares(), batch_size=8, drop_last=True)
    changed = changed_loader(loader, {"num_workers": 2, "persistent_workers": True}, tmp_path)
    assert (changed.num_workers, changed.prefetch_factor, changed.persistent_workers) == (2, 2, True)
    assert changed.batch_sampler is loader.batch_sampler
    back = changed_loader(changed, {"num_workers": 0}, tmp_path)
    assert (back.num_workers, back.prefetch_factor, back.persistent_workers) == (0, None, False)
    larger = changed_loader(loader, {"batch_size": 16}, tmp_path)
    assert [len(labels) for _, labels in larger] == [16, 16]


def test_numbers_of_workers_that_are_tried_give_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 1)
    loader = DataLoader(Squares(), batch_size=8)
    changed = changed_loader(loader, {"num_workers": 2}, tmp_path)
    assert len(list(changed)) == 5
    assert not [str(each.message) for each in recwarn if "worker processes" in str(each.message)]


def test_a_stream_keeps_its_batches(tmp_path: Path) -> None:
    changed = changed_loader(DataLoader(Stream(), batch_size=4), {"num_workers": 1}, tmp_path)
    assert (changed.batch_size, changed.num_workers) == (4, 1)


def test_a_cache_gives_the_same_batches_for_as_long_as_an_epoch(tmp_path: Path) -> None:
    loader = DataLoader(Squares(), batch_size=4)
    changed = changed_loader(loader, {"cache": True}, tmp_path / "cache")
    got = [labels.tolist() for _, labels in changed]
    assert got == [labels.tolist() for _, labels in loader]


class Watchful(Squares):
    """Gives something else where a worker asks."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), 1.0 if get_worker_info() is None else 2.0), index


def seeded(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 5.0  # type: ignore[attr-defined]


class Offset(Squares):
    offset = 0.0

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), index + self.offset), index


def test_same_numbers_or_not(tmp_path: Path) -> None:
    loader = DataLoader(Squares(), batch_size=4, shuffle=True)
    assert batches_agree(loader, {"num_workers": 2}, tmp_path) is True
    assert batches_agree(loader, {"cache": True}, tmp_path / "cache") is True
    one_by_one: DataLoader[Any] = DataLoader(Squares(), batch_size=None)
    assert batches_agree(one_by_one, {"cache": True}, tmp_path / "single") is True
    assert batches_agree(one_by_one, {"num_workers": 1}, tmp_path) is True
    assert batches_agree(DataLoader(Noisy(), batch_size=4), {"num_workers": 2}, tmp_path) is None
    assert batches_agree(DataLoader(Stream(), batch_size=4), {"num_workers": 2}, tmp_path) is None


def test_a_batch_of_a_worker_is_compared_where_there_was_none(tmp_path: Path) -> None:
    for loader in (
        DataLoader(Watchful(), batch_size=4),
        DataLoader(Offset(), batch_size=4, worker_init_fn=seeded),
        DataLoader(Watchful(), batch_size=None),
    ):
        assert batches_agree(loader, {"num_workers": 2}, tmp_path) is False
        assert batches_agree(loader, {"pin_memory": True}, tmp_path) is True
    assert (
        batches_agree(DataLoader(Watchful(), batch_size=4, num_workers=1), {"num_workers": 0}, tmp_path)
        is False
    )
    assert (
        batches_agree(DataLoader(Watchful(), batch_size=4, num_workers=1), {"num_workers": 2}, tmp_path) is True
    )


def remedy(name: str, **settings: Any) -> Remedy:
    return Remedy(name, "because", 2.0, "nothing", "do it", settings)


def traced(*pairs: tuple[float, float], name: str = "workers", **others: Any) -> Trace:
    """Rounds of four steps: as it is, and with the remedy."""
    at, blocks = 0.0, []
    for number, pair in enumerate(pairs):
        for source, seconds in zip(("base", name), pair, strict=True):
            blocks.append(BlockRow(source, 100 + number, at, at + 4 * seconds, 4, 0.0))
            at += 4 * seconds
    loaders = [{"number": 0, "is_train": True, "num_batches": 9, "batch_size": 8}]
    return Trace(1, blocks=blocks, loaders=loaders, **others)


def test_what_is_better_beyond_noise_is_kept() -> None:
    trace = traced((2.0, 1.0), (2.2, 1.0), (2.1, 1.1), agreements={"workers": True})
    found = judged(trace, Phases(trace), remedy("workers", num_workers=2))
    assert found is not None
    assert found.is_kept
    assert found.gain == pytest.approx(math.sqrt(2.0 * math.sqrt(2.2 * 2.1 / 1.1)))  # of 2.0, 2.2 and 1.9
    assert (found.losses_agree, found.note) == (True, "same numbers")


def test_noise_is_not_kept() -> None:
    trace = traced((2.0, 1.0), (1.0, 2.0), (2.0, 1.5))
    found = judged(trace, Phases(trace), remedy("workers", num_workers=2))
    assert found is not None
    assert not found.is_kept
    assert found.low < 1 < found.high
    assert found.note.startswith("too noisy to tell")


def test_what_is_surely_slower_is_not_called_noise() -> None:
    trace = traced((1.0, 2.0), (1.0, 2.1), (1.0, 2.0))
    found = judged(trace, Phases(trace), remedy("workers", num_workers=2))
    assert found is not None
    assert found.high < 1
    assert "noisy" not in found.note


def test_other_numbers_are_not_kept() -> None:
    trace = traced((2.0, 1.0), (2.0, 1.0), (2.0, 1.0), agreements={"workers": False})
    found = judged(trace, Phases(trace), remedy("workers", num_workers=2))
    assert found is not None
    assert not found.is_kept
    assert "other numbers" in found.note


def test_a_larger_batch_makes_fewer_steps() -> None:
    trace = traced((1.0, 1.0), (1.0, 1.0), name="batch_size")
    found = judged(trace, Phases(trace), remedy("batch_size", batch_size=16))
    assert found is not None
    assert found.gain == pytest.approx(2.0)


def test_what_was_refused_says_why() -> None:
    trace = traced((1.0, 1.0), refusals={"cache": "the samples are random"})
    found = judged(trace, Phases(trace), remedy("cache", cache=True))
    assert found is not None
    assert (found.is_kept, found.note) == (False, "the samples are random")
    assert judged(trace, Phases(trace), remedy("prefetch", prefetch_factor=4)) is None


def record_of(*remedies: Remedy) -> DoctorRecord:
    return DoctorRecord("x.py", (), Exit(0, False), (), 0, (), None, remedies=remedies)


def write_rows(folder: Path, trace: Trace) -> None:
    rows = [["block", *block] for block in trace.blocks] + [["loaders", trace.loaders]]
    rows += [["agrees", name, value] for name, value in trace.agreements.items()]
    (folder / "events-1.jsonl").write_text(json.dumps([0, rows]) + "\n")


def test_the_script_is_told_what_to_try_one_by_one_then_together(tmp_path: Path) -> None:
    tried = [remedy("workers", num_workers=2), remedy("cache", cache=True), remedy("rewrite")]
    flag = remedy("tf32", matmul_precision="high")
    referee = Referee(lambda folder: record_of(*tried, flag))
    referee.answer(tmp_path)
    assert not list(tmp_path.glob("trials-*"))
    (tmp_path / "ask-0").touch()
    referee.answer(tmp_path)
    asked = json.loads((tmp_path / "trials-0.json").read_text())
    assert [each["name"] for each in asked] == ["workers", "cache"]
    workers, cache = traced((3.0, 2.0), (3.0, 2.0)), traced((3.0, 1.0), (3.0, 1.0), name="cache")
    workers.blocks += [block for block in cache.blocks if block.name == "cache"]
    write_rows(tmp_path, workers)
    (tmp_path / "ask-1").touch()
    referee.answer(tmp_path)
    (together,) = json.loads((tmp_path / "trials-1.json").read_text())
    assert together["settings"] == {"num_workers": 2, "cache": True}
    (tmp_path / "ask-2").touch()
    referee.answer(tmp_path)
    assert json.loads((tmp_path / "trials-2.json").read_text()) == []
    done = referee.finish(record_of(*tried, flag), tmp_path)
    gains = {each.name: each.trial and each.trial.gain for each in done.remedies}
    assert gains["cache"] == pytest.approx(3.0)
    assert gains["workers"] == pytest.approx(1.5)
    assert gains["rewrite"] is None
    assert gains["together"] is None


def test_switches_of_rounding_are_tried_only_when_asked_for(tmp_path: Path) -> None:
    flag = remedy("tf32", matmul_precision="high")
    (tmp_path / "ask-0").touch()
    Referee(lambda folder: record_of(flag), with_flags=True).answer(tmp_path)
    assert json.loads((tmp_path / "trials-0.json").read_text())[0]["name"] == "tf32"
