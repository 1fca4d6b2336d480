"""What may go wrong rather than slow: memory, shared memory, workers that the machine cannot carry."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flatout.config import LoaderSettings
from flatout.doctor.rules.case import Case
from flatout.doctor.rules.compute import HEADROOM, most_device_bytes
from flatout.doctor.rules.words import duration, share
from flatout.loader.platform import decide
from flatout.units import bytes_text

LOW_MEMORY = 0.1
"""Part of the memory that should stay free."""


def warn_of_shared_memory(case: Case) -> Iterator[str]:
    """Batches made ahead that do not fit into /dev/shm end as 'bus error' in a worker."""
    loader, room = case.loader, case.machine.shared_bytes
    ahead = loader.num_workers * (loader.prefetch_factor or 2) * (loader.batch_bytes or 0)
    if room is not None and ahead > room:
        yield (
            f"{bytes_text(ahead)} of batches are made ahead and /dev/shm has {bytes_text(room)}: fewer "
            "workers, a smaller prefetch_factor, or a larger one (docker run --shm-size)"
        )


def warn_of_memory(case: Case) -> Iterator[str]:
    """A machine, or a device, that is nearly full."""
    used = max((look.rss_bytes for look in case.record.looks), default=0)
    total = case.num_ranks * case.machine.memory_bytes  # all ranks were looked at together
    if used > (1 - LOW_MEMORY) * total:
        yield (
            f"the script and its workers hold {bytes_text(used)} of {bytes_text(total)} of memory: fewer "
            "workers, a smaller prefetch_factor or batch"
        )
    gpu, taken = case.machine.gpu, most_device_bytes(case)
    if gpu is not None and taken is not None and taken > (1 - HEADROOM[0]) * gpu.memory_bytes:
        free = max(0.0, 1 - taken / gpu.memory_bytes)
        yield f"only {share(free)} of the device's memory are free: a longer sample may not fit"


def warn_of_others(case: Case) -> Iterator[str]:
    """Whoever makes batches waits longer for a core than it has one, and its own crowd is not the reason."""
    waited_s, is_crowd = case.facts.loader_cpu_wait_s or 0.0, case.loader.num_workers > case.machine.num_cores
    if waited_s > case.seen_cpu_s and not is_crowd:
        yield (
            f"a batch had {duration(case.seen_cpu_s)} of a core and waited {duration(waited_s)} for one: other "
            "programs are busy on this machine, look again when it is quiet"
        )


def warn_of_workers(case: Case) -> Iterator[str]:
    """What the platform rules have against the number of workers."""
    if not case.loader.num_workers:
        return
    settings = LoaderSettings(num_workers=case.loader.num_workers)
    notes = decide(settings, machine=case.machine, is_fast=False).notes
    yield from (note for note in notes if note.startswith("num_workers"))


WARNINGS: tuple[Callable[[Case], Iterator[str]], ...] = (
    warn_of_shared_memory,
    warn_of_memory,
    warn_of_others,
    warn_of_workers,
)
