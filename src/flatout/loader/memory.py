"""Does it fit: the memory that batches made ahead take, and splits held in memory, checked before the start."""

from __future__ import annotations

from flatout.errors import LoaderError
from flatout.loader.machine import Machine

PRELOAD_SHARE = 0.9
"""Share of the free memory that a split held in memory may take; the rest is the training's."""


def batch_memory_bytes(
    num_workers: int, prefetch_factor: int | None, batch_size: int, sample_bytes: int
) -> int:
    """num_workers x prefetch_factor x batch_size x sample_bytes; without workers, one batch."""
    num_ahead = num_workers * (prefetch_factor or 1) if num_workers else 1
    return num_ahead * batch_size * sample_bytes


def check_memory(
    *,
    num_workers: int,
    prefetch_factor: int | None,
    batch_size: int,
    sample_bytes: int,
    machine: Machine,
    is_fast: bool,
) -> int:
    """The bytes that batches made ahead take at the most.

    Worker processes (the standard path) hand batches over through /dev/shm, so that they must fit there too.

    Raises:
        LoaderError: they do not fit, with the numbers and what to lower.
    """
    need = batch_memory_bytes(num_workers, prefetch_factor, batch_size, sample_bytes)
    places = {"memory": machine.free_bytes}
    if num_workers and not is_fast and machine.shared_bytes is not None:
        places["/dev/shm"] = machine.shared_bytes
    for place, free in places.items():
        if need > free:
            raise LoaderError(_too_much(num_workers, prefetch_factor, batch_size, sample_bytes, need, place, free))
    return need


def check_preload(num_bytes: int, machine: Machine, what: str) -> None:
    """Refuse to hold more in memory than there is.

    Args:
        what: the split and the setting that asks for it, for the message.

    Raises:
        LoaderError: with the numbers and what to change.
    """
    most = int(machine.free_bytes * PRELOAD_SHARE)
    if num_bytes > most:
        raise LoaderError(
            f"{what}: {in_units(num_bytes)} do not fit into {in_units(machine.free_bytes)} of free memory "
            f"({PRELOAD_SHARE:.0%} of it may be used). Turn it off: the system's page cache still keeps what "
            "fits. Or shrink the samples (encoding: float16 or uint8)"
        )


def in_units(num_bytes: float) -> str:
    """1536 -> 1.5 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:,.0f} {unit}" if unit == "bytes" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TiB"


def _too_much(
    num_workers: int,
    prefetch_factor: int | None,
    batch_size: int,
    sample_bytes: int,
    need: int,
    place: str,
    free: int,
) -> str:
    factors = f"{batch_size} samples of {in_units(sample_bytes)}"
    lower = "batch_size"
    if num_workers:
        factors = f"{num_workers} workers x {prefetch_factor or 1} batches ahead x {factors}"
        lower = "num_workers, prefetch_factor or batch_size"
    more = " or give the container more of it (docker: --shm-size)" if place == "/dev/shm" else ""
    return (
        f"batches made ahead would take {in_units(need)} ({factors}); {place} has {in_units(free)} free. "
        f"Lower {lower}{more}"
    )
