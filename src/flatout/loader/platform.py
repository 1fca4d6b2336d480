"""The platform rules: settings and machine in; workers, prefetching, pinning and the reasons for them out."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.config import LoaderSettings
from flatout.config.settle import MOST_WORKERS
from flatout.loader.machine import Machine

MOST_STANDARD = 8
"""Worker processes that `auto` starts at the most."""
MOST_PRODUCERS = 4
"""Producer threads that `auto` starts at the most: a few gather as fast as the memory is."""
AUTO_SHARE = 0.25
"""Share of the free memory that `auto` fills with batches made ahead."""
GIB = 1 << 30
NOMINAL = 0.9
"""Part of its nominal memory that a GPU shows at least: one of 24 GB has 23.5 GiB, of 16 GB often 14.8."""
BATCH_SIZES = {24: (16, 32), 16: (8, 16), 0: (4, 8)}
"""Smallest and largest batch size to try first, by GB of the GPU."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one loader is built with, and why."""

    num_workers: int
    """Worker processes of the standard path, producer threads of the fast one; 0: the caller does the work."""
    prefetch_factor: int | None
    """Batches ahead of each worker; None without workers."""
    persistent_workers: bool
    pin_memory: bool
    multiprocessing_context: str | None
    """How worker processes start; None: there are none."""
    notes: tuple[str, ...] = ()
    """What was chosen or has no effect, in plain words."""


def decide(
    settings: LoaderSettings,
    *,
    machine: Machine,
    is_fast: bool,
    all_preloaded: bool = False,
    sample_bytes: int | None = None,
    is_distributed: bool = False,
) -> Decision:
    """What these settings come to on this machine.

    Given values are kept; `auto` and what cannot be are decided here.

    Args:
        is_fast: the loader reads a store with threads, not raw files with processes.
        all_preloaded: every sample is in memory, so that there is nothing for worker processes to do.
        sample_bytes: mean size of a sample; `auto` then takes no more workers than memory allows.
        is_distributed: torch.distributed is in use.
    """
    notes: list[str] = []
    num_workers = _num_workers(settings, machine, is_fast, all_preloaded, sample_bytes, notes)
    prefetch_factor = settings.prefetch_factor if num_workers else None
    if num_workers and prefetch_factor is None:
        prefetch_factor = LoaderSettings.model_fields["prefetch_factor"].default
    return Decision(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=_is_persistent(settings, num_workers, is_fast, notes),
        pin_memory=_is_pinned(settings, machine, notes),
        multiprocessing_context=_start_method(machine, 0 if is_fast else num_workers, is_distributed, notes),
        notes=tuple(notes),
    )


def suggest_batch_size(machine: Machine) -> tuple[int, int] | None:
    """Smallest and largest batch size to try first on this GPU; None without one.

    4-8 with 8 GB, 8-16 with 16 GB, 16-32 with 24 GB and more: for volumes and long recordings. Smaller
    samples take more.
    """
    if machine.gpu is None:
        return None
    memory_gb = machine.gpu.memory_bytes / GIB
    return next(sizes for least, sizes in BATCH_SIZES.items() if memory_gb >= NOMINAL * least)


def most_producers(num_cores: int) -> int:
    """Producer threads that pay: the consumer makes batches, too, while it would have to wait for one."""
    return max(1, min(num_cores - 1, MOST_PRODUCERS))


def _num_workers(
    settings: LoaderSettings,
    machine: Machine,
    is_fast: bool,
    all_preloaded: bool,
    sample_bytes: int | None,
    notes: list[str],
) -> int:
    if settings.num_workers != "auto":
        notes += _doubts(settings.num_workers, machine, is_fast)
        return settings.num_workers
    if is_fast:
        number = most_producers(machine.num_cores)
        reason = f"{machine.num_cores} cores, of which the consumer has one"
    elif machine.is_windows:
        number, reason = 0, "Windows starts each worker process as a new interpreter"
    elif all_preloaded:
        number, reason = 0, "all samples are in memory"
    else:
        number, reason = min(machine.num_cores, MOST_STANDARD), f"{machine.num_cores} cores"
    most = _most_for_memory(settings, machine, is_fast, sample_bytes)
    if most < number:
        number, reason = most, f"more would fill over {AUTO_SHARE:.0%} of the free memory with batches"
    one, more = ("producer thread", "producer threads") if is_fast else ("worker process", "worker processes")
    notes.append(f"num_workers: auto is {number} {one if number == 1 else more}: {reason}")
    return number


def _doubts(number: int, machine: Machine, is_fast: bool) -> list[str]:
    """What speaks against a given number, which is kept nevertheless."""
    doubts = []
    most = min(machine.num_cores, MOST_WORKERS)
    if number > most:
        doubts.append(f"num_workers: {number} is kept, but more than {most} rarely pay on this machine")
    if number and machine.is_windows and not is_fast:
        doubts.append(
            f"num_workers: {number} is kept, but Windows starts each as a new interpreter, and the script "
            'needs an `if __name__ == "__main__":` around its work; 0 is advised'
        )
    return doubts


def _most_for_memory(
    settings: LoaderSettings, machine: Machine, is_fast: bool, sample_bytes: int | None
) -> int:
    """Workers whose batches take no more than their share of memory; at least one."""
    each = (settings.prefetch_factor or 1) * settings.batch_size * (sample_bytes or 0)
    free = machine.free_bytes
    if not is_fast and machine.shared_bytes is not None:
        free = min(free, machine.shared_bytes)
    return max(1, int(free * AUTO_SHARE) // each) if each else MOST_WORKERS


def _is_persistent(settings: LoaderSettings, num_workers: int, is_fast: bool, notes: list[str]) -> bool:
    if not settings.persistent_workers:
        return False
    if is_fast:
        if "persistent_workers" in settings.model_fields_set:
            notes.append("persistent_workers: no effect on the fast path, whose threads always run on")
        return False
    if not num_workers:
        notes.append("prefetch_factor becomes null and persistent_workers false: there are no workers")
        return False
    return True


def _is_pinned(settings: LoaderSettings, machine: Machine, notes: list[str]) -> bool:
    if settings.pin_memory and not machine.has_cuda and "pin_memory" in settings.model_fields_set:
        notes.append("pin_memory: no effect without CUDA")
    return settings.pin_memory and machine.has_cuda


def _start_method(machine: Machine, num_workers: int, is_distributed: bool, notes: list[str]) -> str | None:
    """fork on Linux: unguarded scripts and notebooks run, and nothing is pickled.

    Not under torch.distributed: NCCL's and gloo's threads do not survive a fork (torch's own advice).
    """
    if not num_workers:
        return None
    if machine.system != "linux":
        return "spawn"
    if is_distributed:
        notes.append("worker processes start by forkserver: a fork beside torch.distributed's threads can hang")
        return "forkserver"
    return "fork"
