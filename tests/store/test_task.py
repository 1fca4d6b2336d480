"""One task: rows in, shards and a receipt out; what fails is one row's failure."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.errors import ConfigError, SampleError
from flatout.source import hash_key
from flatout.store import shard_writer
from flatout.store import task as tasks
from flatout.store.column import Slabs
from flatout.store.metadata import ShardMeta
from flatout.store.receipt import MAX_REASON_CHARS, BadRow, Receipt
from flatout.store.shard_reader import ShardReader
from flatout.store.shard_writer import ShardWriter
from flatout.store.task import ShardTask, TaskSetup, describe, make_samples, peak_resident_bytes
from flatout.types import FieldSpec, Row

FIELDS = (FieldSpec("x", "array", "float32", (None,)),)


@dataclass
class Maker:
    """A row's value `make` is what it gives, or raises."""

    def make(self, row: Row) -> Any:
        found = row.values["make"]
        if isinstance(found, BaseException):
            raise found
        return found

    def path_of(self, row: Row) -> str:
        return f"{row.key}.npy"


def row_of(key: str, made: Any) -> Row:
    return Row(key, {"make": made})


def good(key: str, size: int = 3) -> Row:
    return row_of(key, {"x": np.full(size, len(key), np.float32)})


def setup_of(folder: Path, **changes: Any) -> TaskSetup:
    return TaskSetup(Maker(), changes.pop("fields", FIELDS), str(folder), **changes)


def keys_of(folder: Path, shard: ShardMeta) -> list[str]:
    return ShardReader(folder / shard.file, shard, FIELDS).keys()


def test_a_shard_and_its_receipt(tmp_path: Path) -> None:
    task = ShardTask(setup_of(tmp_path), 4)
    heard: list[int] = []
    task.feed([good("a"), good("bb", 0)], heard.append)
    task.feed([good("ccc")], heard.append)
    receipt = task.finish()
    assert heard == [0, 1, -1, 2, -1]
    (shard,) = receipt.shards
    assert shard.file.startswith("000004-")
    assert keys_of(tmp_path, shard) == ["a", "bb", "ccc"]
    assert (receipt.task, receipt.num_rows, receipt.bad) == (4, 3, ())
    assert receipt.bytes_out == (tmp_path / shard.file).stat().st_size
    assert set(receipt.seconds) >= {"make", "encode", "write"}
    assert receipt.peak_bytes > 1 << 20


def test_a_receipt_goes_through_json(tmp_path: Path) -> None:
    task = ShardTask(setup_of(tmp_path), 4)
    task.feed([good("a"), row_of("b", SampleError("decode", "broken"))])
    receipt = task.finish()
    assert Receipt.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt


@pytest.mark.parametrize("cut", [1, 2, 3, 6])
def test_how_rows_are_handed_over_does_not_change_a_byte(tmp_path: Path, cut: int) -> None:
    rows = [good("a" * (n + 1), n) for n in range(6)]
    names = set()
    for size in (cut, 6):
        task = ShardTask(setup_of(tmp_path), 0)
        for start in range(0, 6, size):
            task.feed(rows[start : start + size])
        names.add(task.finish().shards)
    assert len(names) == 1


@pytest.mark.parametrize(
    ("made", "stage", "reason"),
    [
        (SampleError("decode", "broken"), "decode", "broken"),
        (ValueError("odd"), "transform", "ValueError: odd"),
        (SystemExit(3), "transform", "SystemExit: 3"),
        (MemoryError(), "decode", "out of memory"),
        ({}, "check", "field 'x' is missing"),
        ([], "transform", "gave no sample"),
        (None, "transform", "TypeError"),
        ({"x": np.zeros((2, 2), np.float32)}, "check", "has shape (2, 2)"),
        ({"x": np.array([np.nan], np.float32)}, "check", "NaN"),
        ({"x": np.array(["a"])}, "check", "wanted float32"),
        ([{"x": np.zeros(1, np.float32)}, {"x": np.array([np.inf], np.float32)}], "check", "infinite"),
    ],
)
def test_a_bad_row_is_told_and_the_others_are_as_without_it(
    tmp_path: Path, made: Any, stage: str, reason: str
) -> None:
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([good("a"), row_of("bad", made), good("b")])
    receipt = task.finish()
    (bad,) = receipt.bad
    assert (bad.key, bad.path, bad.stage) == ("bad", "bad.npy", stage)
    assert reason in bad.error
    alone = ShardTask(setup_of(tmp_path), 0)
    alone.feed([good("a"), good("b")])
    assert alone.finish().shards == receipt.shards


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """As a program on a terminal, whatever the tests were started from."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
@pytest.mark.parametrize("error", [ConfigError("wrong"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["make", "encode"])
def test_what_every_row_would_fail_with_ends_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    task = ShardTask(setup_of(tmp_path), 0)
    if step == "encode":
        monkeypatch.setattr(ShardTask, "_encode_sample", fail)
    with pytest.raises(type(error)):
        task.feed([row_of("a", error) if step == "make" else good("a")])


def test_an_interrupt_that_no_user_can_have_sent_is_the_rows_own(tmp_path: Path, hears_ctrl_c: None) -> None:
    """Workers leave Ctrl-C to their parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([row_of("a", KeyboardInterrupt()), good("b")])
    (bad,) = task.finish().bad
    assert (bad.key, bad.error.rstrip(": ")) == ("a", "KeyboardInterrupt")


def test_barred_rows_are_not_touched(tmp_path: Path) -> None:
    barred = BadRow("b", "b.npy", "worker", "it crashed")
    task = ShardTask(setup_of(tmp_path), 0, {"b": barred})
    task.feed([good("a"), row_of("b", KeyboardInterrupt())])
    receipt = task.finish()
    assert (receipt.bad, receipt.num_rows) == ((barred,), 2)


def test_only_bad_rows_give_no_shard(tmp_path: Path) -> None:
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([row_of("a", ValueError())])
    assert task.finish().shards == ()
    assert list(tmp_path.iterdir()) == []


def test_pieces_have_numbered_keys(tmp_path: Path) -> None:
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([row_of("r", [{"x": np.zeros(n, np.float32)} for n in range(3)]), good("s")])
    (shard,) = task.finish().shards
    reader = ShardReader(tmp_path / shard.file, shard, FIELDS)
    assert reader.keys() == ["r#0000", "r#0001", "r#0002", "s"]
    assert reader.tables["flatout/part"].tolist() == [0, 1, 2, -1]
    assert reader.tables["flatout/key_hash"].tolist() == list(map(hash_key, reader.keys()))


def test_a_shard_is_sealed_before_it_grows_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SEAL_BYTES", 100)
    task = ShardTask(setup_of(tmp_path), 7)
    sizes = [10, 10, 10, 500, 10, 15, 11]  # floats of 4 bytes
    task.feed([good(f"k{n}", size) for n, size in enumerate(sizes)])
    receipt = task.finish()
    assert [keys_of(tmp_path, shard) for shard in receipt.shards] == [
        ["k0", "k1"],
        ["k2"],
        ["k3"],  # larger than a shard: one of its own
        ["k4", "k5"],
        ["k6"],
    ]
    assert {shard.file[:6] for shard in receipt.shards} == {"000007"}
    assert len({shard.file for shard in receipt.shards}) == 5
    assert receipt.bytes_out == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_no_row_is_under_way_while_a_full_shard_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk must not look like a row that takes too long."""
    monkeypatch.setattr(tasks, "SEAL_BYTES", 100)
    monkeypatch.setattr(tasks, "MOST_TOGETHER_BYTES", 1)
    heard: list[int] = []
    while_written: list[int] = []
    put = ShardWriter.put

    def noting(*arguments: Any, **options: Any) -> Any:
        while_written.append(heard[-1])
        return put(*arguments, **options)

    monkeypatch.setattr(ShardWriter, "put", noting)
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([good(f"k{n}", 15) for n in range(4)], heard.append)
    task.finish()
    assert while_written == [-1] * 4
    assert [position for position in heard if position >= 0] == [0, 1, 2, 3]


def test_the_pieces_of_a_row_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SEAL_BYTES", 100)
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([good("a", 10), row_of("r", [{"x": np.zeros(20, np.float32)} for _ in range(3)])])
    found = [keys_of(tmp_path, shard) for shard in task.finish().shards]
    assert found == [["a"], ["r#0000", "r#0001", "r#0002"]]


def test_largest_errors_are_of_all_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SEAL_BYTES", 1)
    fields = (FieldSpec("x", "array", "float32", (None,), encoding="float16"),)
    task = ShardTask(setup_of(tmp_path, fields=fields), 0)
    task.feed([row_of(f"k{n}", {"x": np.array([value], np.float32)}) for n, value in enumerate((1, 2049, 2))])
    receipt = task.finish()
    assert len(receipt.shards) == 3
    assert receipt.largest_errors == {"x": 1.0}


def test_nonfinite_only_where_allowed(tmp_path: Path) -> None:
    task = ShardTask(setup_of(tmp_path, allow_nonfinite=frozenset({"x"})), 0)
    task.feed([row_of("a", {"x": np.array([np.nan], np.float32)})])
    assert task.finish().bad == ()


def test_a_dry_task_writes_nothing_and_tells_digests(tmp_path: Path) -> None:
    dry = ShardTask(setup_of(tmp_path, is_dry=True), 0)
    dry.feed([good("a"), good("bb"), row_of("c", ValueError("no"))])
    receipt = dry.finish()
    assert list(tmp_path.iterdir()) == []
    assert [row.key for row in receipt.bad] == ["c"]
    wet = ShardTask(setup_of(tmp_path), 0)
    wet.feed([good("a"), good("bb")])
    (shard,) = wet.finish().shards
    reader = ShardReader(tmp_path / shard.file, shard, FIELDS)
    assert receipt.digests == dict(zip(reader.keys(), reader.tables["flatout/digest"].tolist(), strict=True))


def test_reasons_fit_any_file_and_terminal(tmp_path: Path) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([row_of("a", ValueError("\udcff\n" * 2000)), row_of("b", Unspeakable())])
    first, second = task.finish().bad
    assert "\n" not in first.error
    assert len(first.error) <= MAX_REASON_CHARS + 3
    first.error.encode()
    assert second.error == "Unspeakable"


def test_describe_tells_forms_and_failures() -> None:
    made = [{"x": np.zeros(n, np.float32)} for n in (2, 3)]
    one, several, bad = describe(Maker(), [good("a"), row_of("b", made), row_of("c", ValueError("no"))])
    assert not isinstance(one, BadRow)
    assert not isinstance(several, BadRow)
    assert [form["x"].shape for form in one] == [(3,)]
    assert [form["x"].shape for form in several] == [(2,), (3,)]
    assert isinstance(bad, BadRow)
    assert bad.error == "ValueError: no"


def test_make_samples_numbers_pieces() -> None:
    sample: Mapping[str, Any] = {"x": np.zeros(1)}
    assert [part for part, _ in make_samples(Maker(), row_of("a", sample))] == [-1]
    assert [part for part, _ in make_samples(Maker(), row_of("a", [sample, sample]))] == [0, 1]


def test_peak_memory_counts_what_was_freed() -> None:
    before = peak_resident_bytes()
    block = np.ones(64 << 20, np.uint8)
    del block
    assert peak_resident_bytes() >= max(before, 64 << 20)


def test_bad_rows_come_in_the_order_of_the_rows_whichever_step_refused_them(tmp_path: Path) -> None:
    nan = row_of("nan", {"x": np.array([np.nan], np.float32)})  # refused when encoded, which comes later
    wrong = row_of("wrong", SampleError("decode", "no"))
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed([good("a"), nan, wrong, good("b")])
    task.feed([row_of("last", {"y": np.zeros(1)})])
    receipt = task.finish()
    assert [(bad.key, bad.stage) for bad in receipt.bad] == [
        ("nan", "check"),
        ("wrong", "decode"),
        ("last", "check"),
    ]
    assert keys_of(tmp_path, receipt.shards[0]) == ["a", "b"]


def test_a_large_sample_is_encoded_while_its_row_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "MOST_TOGETHER_BYTES", 100)
    named: list[int] = []
    encoded_at: list[int] = []
    task = ShardTask(setup_of(tmp_path), 0)
    encode = task._encode
    monkeypatch.setattr(
        task, "_encode", lambda key, samples: (encoded_at.append(named[-1]), encode(key, samples))[1]
    )
    task.feed([good("a", 10), good("b", 100), good("c", 10)], named.append)
    assert encoded_at == [1, 1, -1]  # a with b, which is large; c when all are made
    assert keys_of(tmp_path, task.finish().shards[0]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("num_rows", "num_bytes", "wanted"),
    [(1, 1 << 20, True), (7, (1 << 20) - 1, False), (8, 256 << 10, True), (100, (256 << 10) - 1, False)],
)
def test_few_large_samples_or_many_small_ones_are_encoded_together(
    num_rows: int, num_bytes: int, wanted: bool
) -> None:
    assert tasks.are_enough(num_rows, num_bytes) is wanted


def test_the_next_shard_does_not_outgrow_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are in memory; and the wait for the disk is no row's fault."""
    monkeypatch.setattr(tasks, "AHEAD_BYTES", 30)
    before: Future[None] = Future()
    heard: list[tuple[int, bool]] = []
    timer = threading.Timer(0.2, before.set_result, [None])
    timer.start()
    task = ShardTask(setup_of(tmp_path), 0)
    task.feed(
        [good("a"), good("b"), good("c"), good("d"), good("e")],
        lambda at: heard.append((at, before.done())),
        before,
    )
    assert heard == [(0, False), (1, False), (2, False), (-1, False), (3, True), (4, True), (-1, True)]
    assert task.finish().num_rows == 5


def test_a_shard_written_behind_is_the_same(tmp_path: Path) -> None:
    shards = []
    for name in ("at_once", "behind"):
        (tmp_path / name).mkdir()
        task = ShardTask(setup_of(tmp_path / name), 7)
        task.feed([good("a"), good("bb"), row_of("c", SampleError("decode", "bad"))])
        with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as disk:
            if name == "at_once":
                receipt = task.finish()
            else:
                written, settled = task.finish_behind(writing, disk)
                receipt = settled.result()
                assert written.done()
        shards.append((receipt.shards, receipt.bad, receipt.num_rows, receipt.bytes_out))
    assert shards[0] == shards[1]


def test_a_failure_while_a_shard_is_written_behind_is_told(tmp_path: Path) -> None:
    task = ShardTask(setup_of(tmp_path / "missing"), 7)
    task.feed([good("a")])
    with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as disk:
        written, settled = task.finish_behind(writing, disk)
        with pytest.raises(FileNotFoundError):
            settled.result()
        with pytest.raises(FileNotFoundError):
            written.result()


def test_the_memory_of_a_shard_is_not_used_again_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = (FieldSpec("x", "array", "float32", (4096,)),)
    setup, slabs, may_write = setup_of(tmp_path, fields=fields), Slabs(), threading.Event()
    write = shard_writer.write_hashed

    def late(*arguments: Any, **options: Any) -> Any:
        assert may_write.wait(timeout=60.0)
        return write(*arguments, **options)

    monkeypatch.setattr(shard_writer, "write_hashed", late)
    with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as disk:
        settled = []
        for number in range(2):
            task = ShardTask(setup, number, slabs=slabs)
            values = [1000 * number + at for at in range(300)]
            task.feed([row_of(f"k{v}", {"x": np.full(4096, v, np.float32)}) for v in values])
            settled.append(task.finish_behind(writing, disk)[1])
        may_write.set()
        for number, future in enumerate(settled):
            (shard,) = future.result().shards
            reader = ShardReader(tmp_path / shard.file, shard, fields)
            found = [reader.read("x", row) for row in range(300)]
            assert [(x.min(), x.max()) for x in found] == [(1000 * number + at,) * 2 for at in range(300)]


@pytest.mark.parametrize("is_behind", [False, True])
def test_a_failure_leaves_no_temporary_file_of_the_shards_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    monkeypatch.setattr(tasks, "SEAL_BYTES", 100)
    task = ShardTask(setup_of(tmp_path), 7)
    task.feed([good("a", 20), good("bb", 20)])
    assert len(list(tmp_path.iterdir())) == 1  # the first shard, without a name yet

    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ShardWriter, "put", full)
    with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as disk:
        finish = task.finish_behind(writing, disk)[1].result if is_behind else task.finish
        with pytest.raises(OSError, match="space"):
            finish()
    assert list(tmp_path.iterdir()) == []


def test_a_huge_sample_is_written_before_the_next_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SEAL_BYTES", 100)
    are_written = []
    for size in (10, 1000):
        task = ShardTask(setup_of(tmp_path), size)
        task.feed([good("a", size)])
        with ThreadPoolExecutor(1) as writing, ThreadPoolExecutor(1) as disk:
            writing.submit(time.sleep, 0.2)
            written, _ = task.finish_behind(writing, disk)
            are_written.append(written.done())
    assert are_written == [False, True]
