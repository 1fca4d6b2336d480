"""What runs that were cut off leave is used only as far as it is true; no record outlives its cause."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from flatout.store import StoreReader, journal, repair, verify
from flatout.store.commit import QUARANTINE, STATS
from flatout.store.journal import Journal, MadeRows
from flatout.store.metadata import ROOT
from flatout.store.receipt import Receipt
from flatout.store.specify import NUM_PROBED

pytestmark = pytest.mark.usefixtures("few_shards")


class CutOff(BaseException):
    """The run ended here."""


@contextmanager
def cut_off_after_shards(count: int) -> Iterator[None]:
    """Ends the run when the journal has noted so many shards."""
    append, left = Journal.append, [count]

    def counting(self: Journal, receipt: Receipt, made: MadeRows) -> None:
        append(self, receipt, made)
        left[0] -= 1
        if not left[0]:
            raise CutOff

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", counting)
        yield


@contextmanager
def cut_off_behind_the_root() -> Iterator[None]:
    """Ends the run when the root has been swapped and the journal is still there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "discard", Mock(side_effect=CutOff))
        yield


def check_images(source: Any) -> None:
    """Every sample is what its file holds now."""
    assert verify(source.store).damage == ()
    reader = StoreReader(source.store)
    assert reader.keys() == [row["id"] for row in source.rows]
    for position, row in enumerate(source.rows):
        np.testing.assert_array_equal(reader.read(position)["image"], np.load(source.folder / row["image"]))


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_row_of_a_finished_shard_that_changes_after_a_cut_is_made_again(
    source: Any, is_committed: bool
) -> None:
    """The plan's digest knows the first eight rows alone; of the others only the journal can tell."""
    if is_committed:
        source.prepare()
        for number in range(12):
            source.put(number, seed=100 + number)
    with cut_off_after_shards(3), pytest.raises(CutOff):
        source.prepare()
    source.put(NUM_PROBED + 2, seed=99)
    assert source.prepare().num_samples == 12
    check_images(source)
    assert source.prepare().processed == 0


def test_shards_of_another_form_do_not_join_a_version(source: Any) -> None:
    """All files come with another shape; the run that makes them is cut off, and then a row is added."""
    source.prepare()
    for number in range(12):
        path = source.folder / f"s{number:02d}.npy"
        np.save(path, np.full((2, 3), number, np.float32))
        os.utime(path, (1_600_000_000, 1_600_001_000))
    with cut_off_after_shards(1), pytest.raises(CutOff):
        source.prepare()
    source.add(12)
    np.save(source.folder / "s12.npy", np.full((2, 3), 12, np.float32))
    source.save()
    source.prepare()
    check_images(source)
    assert StoreReader(source.store).fields["image"].shape == (2, 3)


def test_a_bad_row_that_leaves_the_manifest_leaves_the_quarantine(source: Any) -> None:
    """No sample differs; the list of bad rows does."""
    (source.folder / "s05.npy").write_bytes(b"broken")
    assert source.prepare(max_bad_fraction=0.5).failed == 1
    before = StoreReader(source.store).meta
    assert before.num_bad == 1
    del source.rows[5]
    source.save()
    stats = source.prepare(max_bad_fraction=0.5)
    assert (stats.processed, stats.failed) == (0, 0)
    meta = StoreReader(source.store).meta
    assert (meta.num_bad, meta.content_hash) == (0, before.content_hash)
    assert (source.store / QUARANTINE).read_bytes() == b""
    check_images(source)


def test_a_run_cut_off_behind_its_root_leaves_nothing_to_write(source: Any) -> None:
    """Its journal names shards that the root names, too: counted twice they would be another version."""
    with cut_off_behind_the_root(), pytest.raises(CutOff):
        source.prepare()
    before = [(source.store / name).read_bytes() for name in (ROOT, STATS)]
    assert source.prepare().processed == 0
    assert [(source.store / name).read_bytes() for name in (ROOT, STATS)] == before
    assert journal.find(source.store) is None
    check_images(source)


@pytest.mark.parametrize("damaged", [[1], [0, 1, 2]])
def test_a_journal_behind_the_root_does_not_vouch_for_damaged_shards(
    source: Any,
    shard_paths: Callable[[Path], list[Path]],
    flip_bit: Callable[..., None],
    damaged: list[int],
) -> None:
    """If all are, what is missing is just what the journal says was made."""
    with cut_off_behind_the_root(), pytest.raises(CutOff):
        source.prepare()
    paths = [shard_paths(source.store)[number] for number in damaged]
    for path in paths:
        flip_bit(path, path.stat().st_size - 3)
    report = verify(source.store)
    assert sorted(report.damaged_shards) == [path.name for path in paths]
    assert repair(source.store, report).processed == 4 * len(damaged)
    check_images(source)


def test_of_two_samples_of_a_row_the_later_made_stays(source: Any) -> None:
    """A file changes within its size and time: only --force sees it, and it is cut off. Then a row is added."""
    source.prepare()
    path = source.folder / "s02.npy"
    found = path.stat()
    np.save(path, np.zeros((4, 5), np.float32))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    with cut_off_after_shards(1), pytest.raises(CutOff):
        source.prepare(force=True)
    source.add(12)
    source.save()
    assert source.prepare().processed == 1
    check_images(source)
