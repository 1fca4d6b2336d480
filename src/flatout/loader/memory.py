"""Does it fit: the memory that batches made ahead take, and splits held in memory, checked before the start."""

from __future__ import annotations

from dataclasses import dataclass

from flatout.errors import LoaderError
from flatout.loader.machine import Machine
from flatout.units import bytes_text

PRELOAD_SHARE = 0.9
"""Share of the free memory, the machine's or a device's, that a split held there may take; the rest is the
training's."""
CACHE_SHARE = 0.25
"""Share of the free memory that one loader's decompressed samples may take, whatever `cache_size` says."""
DEVICE_SHARE = 0.05
"""Share of a GPU's memory that batches made ahead may take; the rest is the training's."""


@dataclass(frozen=True, slots=True)
class BatchesAhead:
    """Batches that wait in memory at the most."""

    num_workers: int
    prefetch_factor: int | None
    batch_size: int
    sample_bytes: int

    @property
    def num_bytes(self) -> int:
        """num_workers x prefetch_factor x batch_size x sample_bytes; without workers, one batch."""
        return self._num_batches * self.batch_size * self.sample_bytes

    @property
    def _num_batches(self) -> int:
        return self.num_workers * (self.prefetch_factor or 1) if self.num_workers else 1

    def __str__(self) -> str:
        factors = f"{self.batch_size} samples of {bytes_text(self.sample_bytes)}"
        if self.num_workers:
            factors = f"{self.num_workers} workers x {self.prefetch_factor or 1} batches ahead x {factors}"
        return f"{bytes_text(self.num_bytes)} ({factors})"


def check_memory(ahead: BatchesAhead, machine: Machine, *, is_fast: bool) -> None:
    """Refuse batches made ahead that cannot fit.

    Worker processes (the standard path) hand batches over through /dev/shm, so that they must fit there too.

    Raises:
        LoaderError: with the numbers and what to lower.
    """
    lower = "num_workers, prefetch_factor or batch_size" if ahead.num_workers else "batch_size"
    if ahead.num_bytes > machine.free_bytes:
        raise LoaderError(
            f"batches made ahead would take {ahead}; {bytes_text(machine.free_bytes)} of memory are free. "
            f"Lower {lower}"
        )
    shared = machine.shared_bytes
    if ahead.num_workers and not is_fast and shared is not None and ahead.num_bytes > shared:
        raise LoaderError(
            f"batches made ahead would take {ahead}; /dev/shm, through which workers hand them over, has "
            f"{bytes_text(shared)} free. Lower {lower}, or give the container more of it (docker: --shm-size)"
        )


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
            f"{what}: {bytes_text(num_bytes)} do not fit into {bytes_text(machine.free_bytes)} of free memory "
            f"({PRELOAD_SHARE:.0%} of it may be used). Turn it off: the system's page cache still keeps what "
            "fits. Or shrink the samples (encoding: float16 or uint8)"
        )


def check_device(num_bytes: int, free_bytes: int, device: str, what: str) -> None:
    """Refuse to hold more on a device than there is room for.

    Args:
        what: the split and the setting that asks for it, for the message.

    Raises:
        LoaderError: with the numbers and what to change.
    """
    if num_bytes > int(free_bytes * PRELOAD_SHARE):
        raise LoaderError(
            f"{what}: {bytes_text(num_bytes)} do not fit into {bytes_text(free_bytes)} of free memory on the "
            f"device '{device}' ({PRELOAD_SHARE:.0%} of it may be used). Turn it off: batches are then sent to "
            "the device ahead of their use. Or shrink the samples (encoding: float16 or uint8)"
        )
