"""The parts of the observer that need no script: phases, padding, copies, files, frames, imports."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import namedtuple
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flatout.doctor.ceiling.batches import bytes_of, copy_of, num_samples_of, tensors_of
from flatout.doctor.child.exit import without_own_frames
from flatout.doctor.child.imports import AfterImport
from flatout.doctor.child.log import RowLog, read_rows
from flatout.doctor.observe.run import _overlaps
from flatout.doctor.patches.files import Files
from flatout.doctor.patches.frames import is_users, users_place
from flatout.doctor.steps.loaders import slowest_of
from flatout.doctor.steps.phases import Phases, flatten
from flatout.doctor.steps.trace import Next, Span, Trace
from flatout.doctor.workers.calls import count_calls
from flatout.doctor.workers.padding import padding_of
from flatout.doctor.workers.places import call_text, is_logging, is_reading

Pair = namedtuple("Pair", "x y")


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 64, depth: int = 3) -> list[Span]:
    """Spans like calls: apart, or one inside the other."""
    spans: list[Span] = []
    at = low
    while at < high - 1 and draw(st.booleans()):
        start = draw(st.integers(at, high - 1))
        end = draw(st.integers(start + 1, high))
        spans.append(Span(float(start), float(end), draw(st.sampled_from(["forward", "backward", "log"]))))
        if depth:
            spans += draw(nested(start, end, depth - 1))
        at = end
    return spans


@given(nested())
def test_flat_spans_cover_the_same_time_once(spans: list[Span]) -> None:
    flat = flatten(spans)
    for one, following in pairwise(flat):
        assert one.end <= following.start
    for tick in range(64):
        around = [s for s in spans if s.start <= tick < s.end]
        now = [s for s in flat if s.start <= tick + 0.5 < s.end]
        assert len(now) == (1 if around else 0)
        if around:
            shortest = min(s.end - s.start for s in around)
            assert now[0].phase in {s.phase for s in around if s.end - s.start == shortest}


@given(nested(), st.floats(0, 64), st.floats(0, 64))
def test_seconds_of_any_stretch_add_up(spans: list[Span], one: float, other: float) -> None:
    start, end = sorted((one, other))
    seconds = Phases(Trace(1, spans=spans)).seconds(start, end)
    assert sum(seconds.values()) == pytest.approx(end - start, abs=1e-6)


def test_everything_in_an_evaluation_is_evaluation() -> None:
    loaders = [{"number": 0, "is_train": True}, {"number": 1, "is_train": False}]
    trace = Trace(1, loaders=loaders, iters=[(10.0, 11.0, 1)])
    trace.nexts = [Next(0.0, 1.0, 0, 8), Next(11.0, 12.0, 1, 8), Next(14.0, 15.0, 1, 0), Next(16.0, 18.0, 0, 8)]
    trace.spans = [Span(2.0, 5.0, "forward"), Span(12.0, 13.0, "forward"), Span(13.5, 13.75, "own")]
    seconds = Phases(trace).seconds(0.0, 16.0)
    assert seconds["evaluate"] == pytest.approx(5.0 - 0.25)
    assert (seconds["wait"], seconds["forward"]) == (1.0, 3.0)
    assert sum(seconds.values()) == pytest.approx(16.0 - 0.25)


def test_padding_is_the_constant_tail() -> None:
    batch = torch.rand(4, 3, 100) + 1
    lengths = [100, 50, 40, 10]
    for sample, length in zip(batch, lengths, strict=True):
        sample[:, length:] = 0
    assert padding_of({"x": batch, "y": torch.zeros(4)}) == pytest.approx((0.5, 0.0))
    share, trimmed = padding_of([batch[1:], "name"]) or (0.0, 0.0)
    assert (share, trimmed) == (pytest.approx(1 - 100 / 300), pytest.approx(0.5))


def test_what_is_no_padding() -> None:
    assert padding_of(torch.rand(8, 3, 32, 32)) == (0.0, 0.0)
    assert padding_of((torch.arange(8), ["a"])) is None
    different = torch.rand(4, 50)
    different[:, 25:] = torch.arange(4.0)[:, None]
    assert padding_of(different) == (0.0, 0.0)
    blank = torch.rand(8, 3, 16, 16) + 1
    blank[2:5] = 0
    assert padding_of(blank) == (0.0, 0.0)


def test_copies_are_equal_and_apart() -> None:
    batch = {"pair": Pair(torch.ones(2, 3), [torch.zeros(2)]), "name": "a"}
    own = copy_of(batch)
    assert isinstance(own["pair"], Pair)
    own["pair"].x.mul_(5)
    assert bool((batch["pair"].x == 1).all())  # type: ignore[union-attr]
    assert bytes_of(own) == bytes_of(batch) == 6 * 4 + 2 * 4
    assert num_samples_of(batch) == 2
    assert len(list(tensors_of(batch))) == 2


def test_long_lists_are_not_walked() -> None:
    assert num_samples_of([list(range(5000)), torch.zeros(3, 2)]) == 3
    assert num_samples_of([[*range(5000), torch.zeros(3, 2)]]) is None
    assert num_samples_of(["a", 1]) is None


def test_an_object_that_cannot_be_copied_stays_itself() -> None:
    lock = threading.Lock()
    assert copy_of([lock])[0] is lock


def test_rows_survive_a_cut(tmp_path: Path) -> None:
    log = RowLog(tmp_path, "events")
    log.add(("next", 1.0, 2.0))
    log.flush()
    log.add(("next", 3.0, 4.0))
    log.flush()
    (path,) = tmp_path.glob("events-*.jsonl")
    path.write_text(path.read_text() + '[2, [["next", 5.')
    (rows,) = read_rows(tmp_path, "events").values()
    assert rows == [["next", 1.0, 2.0], ["next", 3.0, 4.0]]


def test_rows_that_were_written_twice_are_read_once(tmp_path: Path) -> None:
    lines = [[0, [["a"], ["b"]]], [0, [["a"], ["b"], ["c"]]], [3, [["d"]]]]
    (tmp_path / "events-7.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert read_rows(tmp_path, "events") == {7: [["a"], ["b"], ["c"], ["d"]]}


def test_files_that_are_written_over(tmp_path: Path) -> None:
    files, path, own = Files(), tmp_path / "log.csv", tmp_path / "own.csv"
    files._own = "/nowhere"
    path.write_text("old")
    for _ in range(2):  # its own file, written again
        files._audit("open", (str(own), "w", 0o1101))
        own.write_text("new")
    files._audit("open", (str(path), "a", 0o2001))
    files._audit("open", (str(path), "r", 0))
    assert files.overwritten == []
    files._audit("open", (str(path), "w", 0o1101))
    files._audit("open", (str(path), "w", 0o1101))
    files._audit("open", ("/dev/null", "w", 0o1101))
    assert files.overwritten == [str(path)]
    assert (files.num_opened, files.last_read) == (1, str(path))


def test_own_frames_are_taken_out_of_a_traceback() -> None:
    def fail() -> None:
        raise ValueError("here")

    def frames(trace: TracebackType | None) -> list[str]:
        return [] if trace is None else [trace.tb_frame.f_code.co_name, *frames(trace.tb_next)]

    try:
        count_calls(fail)  # a frame of the doctor's in between
    except ValueError as error:
        before = frames(error.__traceback__)
        after = frames(without_own_frames(error.__traceback__))
    assert before[1:] == ["count_calls", "fail"]
    assert after == [before[0], "fail"]


def test_a_step_after_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[Any] = []
    finder = AfterImport({"late_module": lambda module: found.append(module.value)})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import late_module  # type: ignore[import-not-found]

    assert found == [1]
    assert late_module.__loader__.get_source("late_module") == "value = 1\n"


def test_whose_file_it_is() -> None:
    file, line = users_place(1)
    assert Path(file) == Path(__file__)
    assert line > 0
    assert is_users(__file__)
    assert not any(is_users(other) for other in (torch.__file__, threading.__file__, "<string>"))


def test_the_innermost_call_as_the_source_says_it(tmp_path: Path) -> None:
    path = tmp_path / "sample.py"
    path.write_text("def f(name):\n    return open(name).read(sys.maxsize)\n")
    code = compile(path.read_text(), str(path), "exec").co_consts[0]
    texts = {call_text(code, 2 * at) for at, _ in enumerate(code.co_positions())}
    assert {"open", ".read"} <= texts
    assert is_reading(".read", ())
    assert not is_reading("np.sin", ())
    assert is_logging("file.write", ())
    assert is_logging("", ["/x/site-packages/tensorboard/writer.py"])


def test_calls_of_one_sample() -> None:
    def inner() -> int:
        return 1

    result, calls = count_calls(lambda: inner() + inner())
    assert result == 2
    assert {name.rpartition(".")[2]: number for (name, _, _), number in calls.items()}["inner"] == 2
    assert sys.getprofile() is None


def test_the_slowest_hundredth() -> None:
    assert slowest_of([1.0] * 198 + [50.0, 100.0]) == 75.0
    assert slowest_of([1.0] * 99 + [50.0]) == 50.0
    assert slowest_of([1.0] * 98 + [50.0]) is None


def _trained(pid: int, *spans: tuple[float, float]) -> Trace:
    trace = Trace(pid, nexts=[Next(start, end, 1, 4) for start, end in spans])
    trace.loaders = [{"number": 1, "is_train": True, "num_batches": len(spans)}]
    return trace


def test_processes_that_train_at_the_same_time_are_ranks_and_no_others() -> None:
    first = _trained(1, (0.0, 1.0), (5.0, 6.0))
    assert _overlaps(first, first)
    assert _overlaps(first, _trained(2, (5.5, 9.0)))
    assert not _overlaps(first, _trained(3, (6.5, 9.0)))  # the next fold
    assert not _overlaps(_trained(3, (6.5, 9.0)), first)
    assert not _overlaps(first, Trace(4, nexts=[Next(0.0, 1.0, 1, 4)]))  # it only evaluates
    assert not _overlaps(first, _trained(5))


def test_files_that_are_renamed_over_others(tmp_path: Path) -> None:
    files, path, own = Files(), tmp_path / "model.ckpt", tmp_path / "own.ckpt"
    files._own = "/nowhere"
    for _ in range(2):
        files._audit("os.rename", (f"{own}.part", str(own), -1, -1))
        own.write_text("new")
    assert files.overwritten == []
    path.write_text("old")
    files._audit("os.rename", (f"{path}.part", path, -1, -1))
    files._audit("os.rename", ("/tmp/part", "/nowhere/exit-1.json", -1, -1))
    files._audit("os.rename", (str(tmp_path / "one"), os.fsencode(tmp_path), -1, -1))  # a folder
    assert files.overwritten == [str(path)]


def test_files_that_are_written_while_batches_are_replayed() -> None:
    files = Files()
    files._own = "/nowhere"
    files._audit("open", ("early.csv", "a", os.O_WRONLY | os.O_APPEND))
    files.is_late = True
    files._audit("open", ("losses.csv", "a", os.O_WRONLY | os.O_APPEND))
    files._audit("open", ("losses.csv", "r", os.O_RDONLY))
    files._audit("open", ("model.part", "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    files._audit("os.rename", ("model.part", "model.ckpt", -1, -1))
    files._audit("open", ("/nowhere/caches-0/head", "wb", os.O_WRONLY))
    files._audit("open", ("__pycache__/x.pyc.1234", None, os.O_WRONLY | os.O_CREAT))
    files.note_saved("late.pt")
    assert files.late == ["losses.csv", "model.ckpt", "late.pt"]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists what a process has open")
def test_files_that_are_open_while_batches_are_replayed(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("read")
    files = Files()
    files._own = str(tmp_path / "own")
    with (
        (tmp_path / "log").open("w") as log,
        (tmp_path / "own").open("w"),
        (tmp_path / "data").open(),
        (tmp_path / "deleted").open("w"),
    ):
        (tmp_path / "deleted").unlink()
        log.write("loss")
        log.flush()
        files.begin_late()
    assert files.is_late
    here = {path: size for path, size in files.still_open.items() if path.startswith(str(tmp_path))}
    assert here == {str(tmp_path / "log"): 4}
