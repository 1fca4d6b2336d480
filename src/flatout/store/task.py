"""ShardTask: rows in, one shard (or, for unexpectedly large rows, a few) and a receipt out.

The same code runs in a local worker process, in a Ray task and in the caller, and gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from flatout.errors import SampleError
from flatout.source import NO_SIGHT, Found, SampleMaker, Sight, Sighter, Sights, hash_key
from flatout.store import block as blocks
from flatout.store.column import Slabs
from flatout.store.making import PASSED, Made, make_samples, row_failure
from flatout.store.measure import Measure, is_measured
from flatout.store.receipt import BadRow, Receipt
from flatout.store.shard_writer import EncodedSample, ShardWriter, WrittenShard
from flatout.store.specify import ArrayForm, Forms, check_array
from flatout.timing import StageClock
from flatout.types import Array, FieldSpec, Limits, Row, RowBlock

SHARD_BYTES = 64 << 20
"""What the plan aims at: large enough for sequential reads, small enough to keep in memory while made."""
PADDED_BYTES = 4 * SHARD_BYTES
"""Compressed ragged fields are padded to a shard's longest sample: it is closed before that grows past this."""
SEAL_BYTES = 2 * SHARD_BYTES
"""A shard is closed before it grows past this, in case the first rows were no measure of the rest."""
AHEAD_BYTES = SHARD_BYTES // 2
"""So much of the next shard is made while the one before is written: both are in memory then."""

TOGETHER_BYTES = 256 << 10
TOGETHER_ROWS = 8
MOST_TOGETHER_BYTES = 1 << 20
"""Samples are checked and encoded together: between two decodes every line of ours finds cold caches. One of
16 KB takes 33 us alone and 16 in a tight loop; of 164 KB seven at once take 15 us less each than two. Small
ones no more than fit a core's own cache: in blocks of 1 MiB one of 16 KB takes 3 us more."""


@dataclass(frozen=True, slots=True)
class Task:
    """One planned shard: its number and how to get its rows when they are wanted."""

    number: int
    num_rows: int
    rows: Callable[[int, int], RowBlock]
    """(start, stop) within the task -> rows; called as requests are sent, so no shard is held whole."""


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """What every task of a prepare shares."""

    maker: SampleMaker
    fields: tuple[FieldSpec, ...]
    folder: str
    """The store's shard folder."""
    allow_nonfinite: frozenset[str] = frozenset()
    """Fields that may hold NaN and infinities."""
    safe: bool = True
    """False skips hashes, crcs and syncs; only the benchmark that measures their cost does so."""
    is_dry: bool = False
    """Make and check every sample, write nothing, report digests."""
    is_measuring: bool = False
    """Measure the values of every sample that is made, of those that fail the check, too."""
    max_sample_bytes: int = Limits().max_sample_bytes
    """Largest sample, whoever made it: decoders refuse before they allocate, a transform is checked here."""
    planned_bytes: float = 0.0
    """Of all samples of the run, before compression: much of it goes past the page cache."""
    sighter: Sighter | None = None
    """Looks at the files that rows are made from, where that is to be recorded."""


class ShardTask:
    """One task under way: `feed` rows in plan order, then `finish`."""

    def __init__(
        self,
        setup: TaskSetup,
        number: int,
        barred: Mapping[str, BadRow] | None = None,
        slabs: Slabs | None = None,
    ) -> None:
        """`slabs`: memory that tasks before this one have used, and those behind will."""
        self._slabs = slabs or Slabs()
        self._setup = setup
        self._number = number
        self._barred = barred or {}
        self._writer = ShardWriter(setup.fields, safe=setup.safe, slabs=self._slabs)
        self._written: list[WrittenShard] = []
        self._bad: list[tuple[int, BadRow]] = []
        self._made: list[tuple[int, Row, Made]] = []
        self._made_bytes = 0
        self._num_rows = 0
        self._errors: dict[str, float] = {}
        self._digests: dict[str, int] = {}
        self._sights: list[Sight] = []
        self._measures = {s.name: Measure() for s in setup.fields if setup.is_measuring and is_measured(s)}
        self._row_bytes = self._block_rows = 0
        """Bytes of a plain row, and how many of them make a block; none: all go the usual way."""
        if blocks.are_plain(setup.fields) and not (setup.is_dry or setup.is_measuring):
            self._row_bytes = sum(map(blocks.row_bytes, setup.fields))
            self._block_rows = blocks.block_rows(self._row_bytes)
        self._block: blocks.Block | None = None
        self._other_ns = 0
        """Of the rows that are fed: whatever is not making them."""
        self._clock = StageClock()
        self._clock.add("make", 0, 0)  # the first of the stages, wherever they are told

    def feed(
        self,
        rows: Sequence[Row],
        at_row: Callable[[int], None] = lambda position: None,
        before: Future[Any] | None = None,
    ) -> None:
        """Make the samples of these rows.

        `at_row` hears the position of each row before it is touched, and -1 when the last is made or a full
        shard is written: a slow disk is not its fault.

        Args:
            before: the writing of the shard before, whose samples are in memory until it is over.
        """
        maker, barred, sighter = self._setup.maker, self._barred, self._setup.sighter
        is_made = False
        found = None if sighter is None else sighter.found()
        early = sighter if sighter is not None and sighter.is_early else None
        first, self._num_rows = self._num_rows, self._num_rows + len(rows)
        # Two looks at a clock for each row would cost 1 us of it: "make" is all that is nothing else.
        started_ns, self._other_ns = perf_counter_ns(), 0
        for position, row in enumerate(rows, start=first):
            if before is not None and self._made_bytes + self._writer.num_bytes > AHEAD_BYTES:
                at_row(-1)
                self._other_ns += _timed_ns(wait, [before])
                before = None
            at_row(position)
            is_made = False
            if barred and row.key in barred:
                self._bad.append((position, barred[row.key]))
                continue
            row.found = found
            if early is not None and found is not None:
                early.note(row, found)
            try:
                samples = make_samples(maker, row)
                is_made = True
            except SampleError as error:
                self._bad.append((position, BadRow.of(maker, row, error.stage, error.reason)))
                continue
            block = self._block
            if block is not None and samples[0][0] < 0 and block.add(position, row, samples[0][1]):
                is_enough = block.is_full
            else:
                is_enough = self._take(position, row, samples, at_row)
            del samples  # it may be as large as a shard: nobody else holds it while it is copied there
            if is_enough:
                self._other_ns += _timed_ns(self._encode_made, at_row)
        self._clock.add("make", perf_counter_ns() - started_ns - self._other_ns, len(rows))
        if is_made:
            at_row(-1)
        self._encode_made(at_row)
        if sighter is not None and found is not None:
            at_row(-1)  # no row's fault either
            with self._clock.span("look"):  # of all together: between two decodes every call finds cold caches
                self._sights += self._look_at(sighter, rows, found, first)

    def _look_at(self, sighter: Sighter, rows: Sequence[Row], found: Found, first: int) -> list[Sight]:
        """What is to be recorded of these rows; nothing of those that failed."""
        failed = {position - first for position, _ in self._bad}
        if not failed:
            return sighter.sights(rows, found)
        good = [at for at in range(len(rows)) if at not in failed]
        sights = dict(zip(good, sighter.sights([rows[at] for at in good], found), strict=True))
        return [sights.get(at, NO_SIGHT) for at in range(len(rows))]

    def finish(self) -> Receipt:
        """Write what is left; the receipt is what the journal keeps."""
        return self._settle(self._seal)

    def finish_behind(self, writing: Executor, disk: Executor) -> tuple[Future[None], Future[Receipt]]:
        """Write what is left in `writing`, and make it last in `disk`: the next task may begin meanwhile."""
        is_huge = self._writer.num_bytes > SEAL_BYTES
        written = writing.submit(self._seal)
        if is_huge:  # one sample that is larger than any shard should be: the next may be so, too
            wait([written])
        return written, disk.submit(self._settle, written.result)

    def _settle(self, write: Callable[[], None]) -> Receipt:
        """Make last what `write` leaves; after a failure no temporary file stays."""
        try:
            write()
            with self._clock.span("sync"):
                shards = tuple(shard.settle() for shard in self._written)
        except BaseException:
            for shard in self._written:
                shard.drop()
            raise
        return Receipt(
            task=self._number,
            shards=shards,
            bad=tuple(bad for _, bad in sorted(self._bad, key=itemgetter(0))),
            num_rows=self._num_rows,
            seconds={stage: stats.seconds for stage, stats in self._clock.stats().items()},
            bytes_out=sum(shard.size for shard in shards),
            largest_errors=self._errors,
            peak_bytes=peak_resident_bytes(),
            digests=self._digests,
            measures=self._measures,
            sights=None if self._setup.sighter is None else Sights.of(self._sights),
        )

    def _take(self, position: int, row: Row, samples: Made, at_row: Callable[[int], None]) -> bool:
        """Begin a block with a row, or keep it as it is, if it is unusual; whether it is time to encode."""
        is_plain = self._block_rows and samples[0][0] < 0 and blocks.fits(self._setup.fields, samples[0][1])
        if is_plain or self._block is not None:  # what came before it
            self._other_ns += _timed_ns(self._encode_made, at_row)
        block = self._new_block() if is_plain else None
        if block is not None and block.add(position, row, samples[0][1]):
            self._block = block
            return block.is_full
        self._made.append((position, row, samples))
        self._made_bytes += sum([array.nbytes for _, sample in samples for array in sample.values()])
        return are_enough(len(self._made), self._made_bytes)

    def _new_block(self) -> blocks.Block | None:
        """One for as many rows as the shard still takes; none if that is no row."""
        num_bytes = min(self._setup.max_sample_bytes, SEAL_BYTES - self._writer.num_bytes)
        num_rows = min(self._block_rows, num_bytes // max(self._row_bytes, 1))
        # Pieces of one row, which stay together, may have filled more than a shard.
        return self._writer.block(num_rows) if num_rows > 0 else None

    def _encode_made(self, at_row: Callable[[int], None]) -> None:
        """Check, encode and keep what was made since the last time."""
        with self._clock.span("encode"):
            encoded_block = self._encode_block()
            encoded = self._encode_rows()
        self._made, self._made_bytes = [], 0
        if encoded_block is not None:
            self._writer.append_block(encoded_block)
        encoded.reverse()
        while encoded:  # each is let go of when the shard has it: a row may be as large as a shard
            self._append(encoded.pop(), at_row)

    def _encode_block(self) -> blocks.EncodedBlock | None:
        """The block; if something is wrong with one of its rows, they go the usual way."""
        block, self._block = self._block, None
        if block is None:
            return None
        try:
            encoded = block.encode(self._setup.allow_nonfinite, safe=self._setup.safe)
        except MemoryError:  # then the row that is too much for it is named
            encoded = None
        if encoded is None:
            samples = block.samples()
            self._made = [(*place, [(-1, sample)]) for place, sample in zip(block.rows, samples, strict=True)]
        return encoded

    def _encode_rows(self) -> list[list[EncodedSample]]:
        """What was made, row by row; bad rows are noted."""
        encoded: list[list[EncodedSample]] = []
        for position, row, samples in self._made:
            try:
                encoded.append(self._encode(row, samples))
            except SampleError as error:
                self._bad.append((position, BadRow.of(self._setup.maker, row, error.stage, error.reason)))
        return encoded

    def _encode(self, row: Row, samples: Made) -> list[EncodedSample]:
        try:
            return [self._encode_sample(row, part, sample) for part, sample in samples]
        except PASSED:
            raise
        except BaseException as error:
            raise row_failure("encode", error) from error

    def _encode_sample(self, row: Row, part: int, sample: Mapping[str, Array]) -> EncodedSample:
        key = row.key if part < 0 else f"{row.key}#{part:04d}"
        key_hash = row.key_hash if part < 0 and row.key_hash else hash_key(key)
        for name, measure in self._measures.items():
            if name in sample:
                measure.add(sample[name])
        return self._writer.encode(key, key_hash, part, self._check(sample))

    def _check(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        if missing := [spec.name for spec in self._setup.fields if spec.name not in sample]:
            raise SampleError("check", f"field '{missing[0]}' is missing; got {sorted(sample)}")
        num_bytes, most = _num_bytes(sample), self._setup.max_sample_bytes
        if num_bytes > most:
            raise SampleError("check", f"the sample has {num_bytes:,} bytes; max_sample_bytes is {most:,}")
        return {
            spec.name: check_array(spec, sample[spec.name], spec.name in self._setup.allow_nonfinite)
            for spec in self._setup.fields
        }

    def _append(self, samples: list[EncodedSample], at_row: Callable[[int], None]) -> None:
        """Keep a row's samples, and nothing of them in the list."""
        if self._setup.is_dry:
            self._digests.update({sample.key: sample.digest() for sample in samples})
            return
        num_bytes = sum(sample.num_bytes for sample in samples)
        is_full = self._writer.num_bytes + num_bytes > SEAL_BYTES
        if len(self._writer) and (is_full or self._writer.padded_bytes(samples) > PADDED_BYTES):
            at_row(-1)
            self._seal()
        samples.reverse()
        while samples:
            self._writer.append(samples.pop())

    def _seal(self) -> None:
        if not len(self._writer):
            return
        with self._clock.span("write"):
            folder, planned_bytes = Path(self._setup.folder), self._setup.planned_bytes
            written = self._writer.put(folder, self._number, planned_bytes=planned_bytes)
        self._written.append(written)
        for name, error in self._writer.largest_errors.items():
            self._errors[name] = max(self._errors.get(name, 0.0), error)
        self._writer = ShardWriter(self._setup.fields, safe=self._setup.safe, slabs=self._slabs)


def are_enough(num_rows: int, num_bytes: int) -> bool:
    """Whether so many made rows are to be encoded now."""
    least = TOGETHER_BYTES if num_rows >= TOGETHER_ROWS else MOST_TOGETHER_BYTES
    return num_bytes >= least


def describe(maker: SampleMaker, rows: Sequence[Row]) -> list[Forms | BadRow]:
    """The forms of each row's samples, or why it has none: what the plan looks at first."""
    found: list[Forms | BadRow] = []
    for row in rows:
        try:
            samples = make_samples(maker, row)
            found.append([{name: ArrayForm.of(a) for name, a in sample.items()} for _, sample in samples])
        except SampleError as error:
            found.append(BadRow.of(maker, row, error.stage, error.reason))
    return found


def _timed_ns(function: Callable[[Any], object], argument: Any) -> int:
    """How long a call takes."""
    started_ns = perf_counter_ns()
    function(argument)
    return perf_counter_ns() - started_ns


def _num_bytes(sample: Mapping[str, Array]) -> int:
    return sum([array.nbytes for array in sample.values()])


def peak_resident_bytes() -> int:
    """Largest resident size this process ever had.

    Not ru_maxrss on Linux: a child made by vfork starts with its parent's peak there.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        import psutil

        memory = psutil.Process().memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
