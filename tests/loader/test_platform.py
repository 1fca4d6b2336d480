"""The platform rules, one after another, on made-up machines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config import LoaderSettings
from flatout.loader.machine import Gpu, Machine
from flatout.loader.memory import BatchesAhead
from flatout.loader.platform import AUTO_SHARE, Decision, decide, suggest_batch_size

GIB = 1 << 30
LINUX = Machine("linux", 12, 64 * GIB, 48 * GIB, 32 * GIB, Gpu("Big", 24 * GIB))


def decided(machine: Machine = LINUX, *, is_fast: bool = False, given: Any = (), **more: Any) -> Decision:
    return decide(LoaderSettings(**dict(given)), machine=machine, is_fast=is_fast, **more)


@pytest.mark.parametrize(("cores", "standard", "fast"), [(1, 1, 1), (2, 2, 1), (6, 6, 4), (64, 8, 4)])
def test_auto_follows_the_cores(cores: int, standard: int, fast: int) -> None:
    machine = replace(LINUX, num_cores=cores)
    assert decided(machine).num_workers == standard
    assert decided(machine, is_fast=True).num_workers == fast


def test_auto_starts_no_processes_on_windows_but_threads() -> None:
    machine = replace(LINUX, system="win32", shared_bytes=None)
    standard = decided(machine)
    assert (standard.num_workers, standard.prefetch_factor, standard.persistent_workers) == (0, None, False)
    assert any("Windows" in note for note in standard.notes)
    assert decided(machine, is_fast=True).num_workers == 4


def test_auto_starts_no_processes_when_all_is_in_memory() -> None:
    found = decided(all_preloaded=True)
    assert (found.num_workers, found.multiprocessing_context) == (0, None)
    assert decided(all_preloaded=True, given={"num_workers": 3}).num_workers == 3


@pytest.mark.parametrize("number", [13, 17, 200])
@pytest.mark.parametrize("is_fast", [False, True])
def test_too_many_workers_are_kept_and_said(number: int, is_fast: bool) -> None:
    found = decided(given={"num_workers": number}, is_fast=is_fast)
    assert found.num_workers == number
    assert any(str(number) in note and "rarely" in note for note in found.notes)


def test_no_machine_has_use_for_more_than_16() -> None:
    machine = replace(LINUX, num_cores=128)
    assert decided(machine, given={"num_workers": 16}).notes == ()
    assert any("more than 16" in note for note in decided(machine, given={"num_workers": 17}).notes)


def test_given_workers_on_windows_are_kept_with_a_warning() -> None:
    machine = replace(LINUX, system="win32")
    assert any("__main__" in note for note in decided(machine, given={"num_workers": 2}).notes)
    assert decided(machine, given={"num_workers": 2}, is_fast=True).notes == ()


def test_without_workers_torchs_settings_become_null_and_false_and_it_is_said_once() -> None:
    given = {"num_workers": 0, "prefetch_factor": 4, "persistent_workers": True}
    found = decided(given=given)
    assert (found.prefetch_factor, found.persistent_workers) == (None, False)
    assert len([note for note in found.notes if "null" in note]) == 1


def test_a_missing_prefetch_factor_is_the_default_where_there_are_workers() -> None:
    assert decided(given={"num_workers": 2, "prefetch_factor": None}).prefetch_factor == 4


def test_persistent_workers_mean_nothing_on_the_fast_path_and_it_is_said_if_given() -> None:
    quiet = decided(is_fast=True)
    said = decided(is_fast=True, given={"persistent_workers": True})
    assert not quiet.persistent_workers
    assert not said.persistent_workers
    assert [note for note in said.notes if note not in quiet.notes] == [
        "persistent_workers: no effect on the fast path, whose threads always run on"
    ]


def test_memory_is_pinned_with_cuda_only() -> None:
    without = replace(LINUX, gpu=None)
    assert decided().pin_memory
    assert not decided(given={"pin_memory": False}).pin_memory
    assert not decided(without).pin_memory
    assert not any("pin" in note for note in decided(without).notes)
    assert any("pin_memory" in note for note in decided(without, given={"pin_memory": True}).notes)


def test_how_processes_start() -> None:
    assert decided().multiprocessing_context == "fork"
    assert decided(replace(LINUX, system="darwin")).multiprocessing_context == "spawn"
    assert decided(is_fast=True).multiprocessing_context is None
    distributed = decided(is_distributed=True)
    assert distributed.multiprocessing_context == "forkserver"
    assert any("forkserver" in note for note in distributed.notes)


@given(
    sample_bytes=st.integers(1, 1 << 30),
    batch_size=st.integers(1, 64),
    free_gib=st.integers(1, 64),
    shared_mib=st.integers(64, 4096),
    is_fast=st.booleans(),
)
def test_auto_never_fills_more_than_its_share(
    sample_bytes: int, batch_size: int, free_gib: int, shared_mib: int, is_fast: bool
) -> None:
    machine = replace(LINUX, free_bytes=free_gib * GIB, shared_bytes=shared_mib << 20)
    found = decided(machine, is_fast=is_fast, given={"batch_size": batch_size}, sample_bytes=sample_bytes)
    ahead = BatchesAhead(found.num_workers, found.prefetch_factor, batch_size, sample_bytes)
    room = machine.free_bytes if is_fast else min(machine.free_bytes, shared_mib << 20)
    assert found.num_workers == 1 or ahead.num_bytes <= room * AUTO_SHARE
    assert found.num_workers >= 1


@pytest.mark.parametrize(
    ("memory_gib", "sizes"),
    [
        (6, (4, 8)),
        (7.8, (4, 8)),
        (12, (4, 8)),
        (14.8, (8, 16)),
        (16, (8, 16)),
        (23.6, (16, 32)),
        (80, (16, 32)),
    ],
)
def test_batch_sizes_by_device_memory(memory_gib: float, sizes: tuple[int, int]) -> None:
    machine = replace(LINUX, gpu=Gpu("any", int(memory_gib * GIB)))
    assert suggest_batch_size(machine) == sizes


def test_no_advice_without_a_gpu() -> None:
    assert suggest_batch_size(replace(LINUX, gpu=None)) is None
