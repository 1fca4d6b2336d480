"""Bands of frequencies taken out of samples in the host's memory: eight rows at once, or by SciPy."""

from __future__ import annotations

import math
import threading
from types import ModuleType

import numpy as np

from flatout.augment.fourier import Plan, plan_transform
from flatout.augment.threads import run_rows
from flatout.types import Array

_PART_VALUES = 1 << 15
"""Values for which it is worth to wake another thread."""
_own = threading.local()
_BLOCK_VALUES = 1 << 17
"""Values whose spectra SciPy makes at a time: 0.5 MB, and as much for the spectra."""


def remove_bands(kernels: ModuleType, x: Array, active: Array, start: Array, width: Array, out: Array) -> None:
    """(B, C, T) float32 in, the same without bins start .. start + width - 1 of each active sample into `out`.

    Which way it goes depends on the length alone: a sample comes out the same in any batch.
    """
    plan = plan_transform(x.shape[-1])
    if plan is None:
        _remove_by_scipy(kernels, x, active, start, width, out)
    else:
        _remove_by_eights(plan, x, active, start, width, out)


def _remove_by_eights(plan: Plan, x: Array, active: Array, start: Array, width: Array, out: Array) -> None:
    """Each channel is a row with the band of its sample."""
    from flatout.augment import band_kernels
    from flatout.augment.band_kernels import NUM_LANES

    num_channels, length = x.shape[1:]
    if not active.all():
        out[~active] = x[~active]
    samples = np.flatnonzero(active)
    rows = (samples[:, None] * num_channels + np.arange(num_channels)).reshape(-1)
    first_bins, num_bins = (np.repeat(each[samples, 0], num_channels) for each in (start, width))
    flat, flat_out = x.reshape(-1, length), out.reshape(-1, length)
    num_blocks = -(-len(rows) // NUM_LANES)
    size = max(1, _PART_VALUES // (NUM_LANES * length))

    def remove(first: int, last: int) -> None:
        lines = _lines((2, length // 2, 2 * NUM_LANES))
        end = min(last * size, num_blocks)
        band_kernels.remove_bands(flat, rows, first_bins, num_bins, *plan, flat_out, lines, first * size, end)

    run_rows(remove, -(-num_blocks // size))


def _lines(shape: tuple[int, ...]) -> Array:
    """A thread's own to work in, kept: 256 KB that are new to the system take it as long as the transforms."""
    size = math.prod(shape)
    if getattr(_own, "size", 0) < size:
        _own.size, _own.values = size, np.empty(size, np.float32)
    lines: Array = _own.values[:size].reshape(shape)
    return lines


def _remove_by_scipy(
    kernels: ModuleType, x: Array, active: Array, start: Array, width: Array, out: Array
) -> None:
    """SciPy's FFT: the threads of torch's wait for each other, 8 ms instead of 0.3 when others use a core."""
    arrays = (x, active, start, width, out)
    num_rows = max(1, _BLOCK_VALUES // x[0].size)

    def remove(first: int, last: int) -> None:
        for block in range(first, last):
            _remove_block(kernels, *(each[block * num_rows : (block + 1) * num_rows] for each in arrays))

    run_rows(remove, -(-len(x) // num_rows))


def _remove_block(kernels: ModuleType, x: Array, active: Array, start: Array, width: Array, out: Array) -> None:
    import scipy.fft

    chosen = slice(None) if active.all() else active
    if not active.all():
        out[:] = x
    if active.any():  # an FFT of nothing is refused
        spectrum = scipy.fft.rfft(x[chosen])
        kernels.clear(spectrum, start[chosen], width[chosen])
        out[chosen] = scipy.fft.irfft(spectrum, n=x.shape[-1], overwrite_x=True)
