"""Rows that failed in a run that was cut off are made once more, in tasks of the plan's size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flatout.errors import TooManyBadError
from flatout.store import DataPreprocessor, StoreReader, plan, verify
from flatout.store import prepare as prepares
from flatout.store.journal import Journal, MadeRows
from flatout.store.receipt import Receipt

NUM_ROWS, ROWS_PER_SHARD = 24, 3
AWAY = range(9, 20)
"""Not among the first eight, whose files settle the plan."""


@pytest.fixture
def source(make_source: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rows in shards of three, of which eleven have lost their file."""
    monkeypatch.setattr(plan, "MIN_SHARDS", NUM_ROWS // ROWS_PER_SHARD)
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    made = make_source(tmp_path / "source", NUM_ROWS)
    take_away(made, AWAY)
    return made


def take_away(source: Any, numbers: Any) -> None:
    for number in numbers:
        path = source.folder / f"s{number:02d}.npy"
        path.rename(path.with_suffix(".away"))


def bring_back(source: Any, numbers: Any) -> None:
    for number in numbers:
        path = source.folder / f"s{number:02d}.npy"
        path.with_suffix(".away").rename(path)


@contextmanager
def cut_off_after(count: int) -> Iterator[None]:
    """Ends the run when the journal has noted so many tasks."""
    append, left = Journal.append, [count]

    def counting(self: Journal, receipt: Receipt, made: MadeRows) -> None:
        append(self, receipt, made)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", counting)
        with pytest.raises(KeyboardInterrupt):
            yield


@contextmanager
def noted_tasks() -> Iterator[list[tuple[int, int]]]:
    """(number, rows) of each task that is handed out."""
    noted: list[tuple[int, int]] = []
    row_task = prepares.row_task

    def noting(job: Any, number: int, positions: Any, digests: Any = None) -> Any:
        noted.append((number, len(positions)))
        return row_task(job, number, positions, digests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepares, "row_task", noting)
        yield noted


def run(source: Any) -> Any:
    return source.prepare(max_bad_fraction=0.9)


def alone(source: Any) -> str:
    """Content hash of a store that was made in one go."""
    config = source.config(preprocessed_data_dir=str(source.folder / "alone"))
    return str(DataPreprocessor(config).run().content_hash)


def test_they_are_cut_as_the_plan_is(source: Any) -> None:
    with cut_off_after(7):
        run(source)
    bring_back(source, AWAY)
    with noted_tasks() as tasks:
        stats = run(source)
    assert tasks == [(7, 3), (8, 3), (9, 3), (10, 3), (11, 2)]
    assert (stats.num_samples, stats.continued, stats.failed) == (NUM_ROWS, 21, 0)
    assert stats.content_hash == alone(source)
    assert max(shard.rows for shard in StoreReader(source.store).meta.shards) == ROWS_PER_SHARD
    assert verify(source.store)
    assert run(source).unchanged == NUM_ROWS


@pytest.mark.parametrize("num_done", [1, 2, 3, 4])
def test_cut_off_among_them_what_is_done_is_done(source: Any, num_done: int) -> None:
    with cut_off_after(8):
        run(source)
    bring_back(source, AWAY)
    with cut_off_after(num_done):
        run(source)
    with noted_tasks() as tasks:
        stats = run(source)
    left = len(AWAY) - min(num_done * ROWS_PER_SHARD, len(AWAY))
    sizes = [min(ROWS_PER_SHARD, left - done) for done in range(0, left, ROWS_PER_SHARD)]
    assert tasks == list(enumerate(sizes, 8 + num_done))
    assert (stats.num_samples, stats.failed) == (NUM_ROWS, 0)
    assert stats.content_hash == alone(source)
    assert verify(source.store)


def test_those_that_fail_again_stand_in_the_list_once(source: Any) -> None:
    with cut_off_after(8):
        run(source)
    bring_back(source, range(9, 13))
    with cut_off_after(2):  # three good ones; one good one, two that fail again
        run(source)
    with cut_off_after(2):  # six that fail again
        run(source)
    bring_back(source, range(13, 15))
    stats = run(source)
    assert (stats.num_samples, stats.failed) == (NUM_ROWS - 5, 5)
    listed = [row.key for row in stats.bad]
    assert sorted(listed) == [f"s{number:02d}" for number in range(15, 20)]
    bring_back(source, range(15, 20))
    assert run(source).content_hash == alone(source)
    assert verify(source.store)


def test_too_many_that_fail_again_are_told_as_ever(source: Any) -> None:
    with cut_off_after(8):
        run(source)
    with pytest.raises(TooManyBadError):
        source.prepare()
    bring_back(source, AWAY)
    assert run(source).content_hash == alone(source)


def test_a_plan_shard_that_is_lost_after_its_rows_were_made_later(source: Any) -> None:
    """Its task is done again as planned, and its rows may not stand in the store twice."""
    with cut_off_after(8):
        run(source)
    bring_back(source, AWAY)
    with cut_off_after(4):
        run(source)
    lost = next((source.store / "shards").glob("000006-*.h5"))  # rows 18 and 19 failed, 20 is in it
    lost.unlink()
    stats = run(source)
    assert stats.content_hash == alone(source)
    assert verify(source.store)


def test_a_task_of_which_later_tries_have_every_row_is_not_done_again(source: Any) -> None:
    with cut_off_after(8):
        run(source)
    bring_back(source, AWAY)
    with cut_off_after(4):
        run(source)
    journal = source.store / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:4], "garbled\n", *lines[5:]]))  # of rows 9 to 11, which all failed
    with noted_tasks() as tasks:
        stats = run(source)
    assert tasks == []
    assert stats.content_hash == alone(source)
