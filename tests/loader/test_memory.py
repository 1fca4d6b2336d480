"""What does not fit is refused before the start, with the numbers and what to lower."""

from __future__ import annotations

import pytest

from flatout.errors import LoaderError
from flatout.loader.machine import Machine
from flatout.loader.memory import BatchesAhead, check_device, check_memory, check_preload

MIB = 1 << 20
MACHINE = Machine("linux", 4, 1024 * MIB, 512 * MIB, 64 * MIB)


def test_the_formula_is_the_guides() -> None:
    assert BatchesAhead(8, 4, 8, 1000).num_bytes == 8 * 4 * 8 * 1000
    assert BatchesAhead(0, None, 8, 1000).num_bytes == 8 * 1000
    assert BatchesAhead(2, None, 8, 1000).num_bytes == 2 * 8 * 1000


def test_what_fits_is_let_through() -> None:
    check_memory(BatchesAhead(2, 4, 8, MIB), MACHINE, is_fast=False)
    check_memory(BatchesAhead(4, 4, 32, MIB), MACHINE, is_fast=True)


def test_too_much_for_the_memory_names_every_number() -> None:
    with pytest.raises(LoaderError) as raised:
        check_memory(BatchesAhead(4, 4, 64, MIB), MACHINE, is_fast=True)
    text = str(raised.value)
    for part in (
        "1.0 GiB",
        "4 workers",
        "4 batches",
        "64 samples",
        "1.0 MiB",
        "512.0 MiB",
        "Lower num_workers",
    ):
        assert part in text


def test_worker_processes_need_shared_memory_threads_do_not() -> None:
    ahead = BatchesAhead(2, 4, 16, MIB)
    check_memory(ahead, MACHINE, is_fast=True)
    with pytest.raises(LoaderError, match=r"/dev/shm.*64\.0 MiB free.*--shm-size"):
        check_memory(ahead, MACHINE, is_fast=False)


def test_without_workers_nothing_goes_through_shared_memory() -> None:
    check_memory(BatchesAhead(0, None, 128, MIB), MACHINE, is_fast=False)
    with pytest.raises(LoaderError, match="Lower batch_size"):
        check_memory(BatchesAhead(0, None, 1024, MIB), MACHINE, is_fast=False)


def test_a_preload_leaves_room_for_the_training() -> None:
    check_preload(400 * MIB, MACHINE, "x")
    with pytest.raises(LoaderError, match=r"preload of val: 500\.0 MiB do not fit into 512\.0 MiB"):
        check_preload(500 * MIB, MACHINE, "preload of val")


def test_a_device_is_refused_with_the_numbers() -> None:
    check_device(400 * MIB, 512 * MIB, "cuda:1", "x")
    with pytest.raises(LoaderError, match=r"of train: 500\.0 MiB do not fit into 512\.0 MiB.*'cuda:1'.*90%"):
        check_device(500 * MIB, 512 * MIB, "cuda:1", "cache_on_device of train")
