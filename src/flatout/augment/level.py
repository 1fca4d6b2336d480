"""How loud a sample is, as (B, 1, 1): what noise is measured against. No gradient flows through it."""

from __future__ import annotations

from torch import Tensor

TINY = 1e-12
"""Divisors are at least this, so that silence stays silence instead of becoming NaN."""


def deviation(x: Tensor) -> Tensor:
    """Deviation of each sample from its own mean over channels and time."""
    # Detached: the strength of an augmentation is a constant, and a root has no gradient at silence.
    constant = x.detach()
    # Not `std`: over two axes that takes torch six times as long on the CPU.
    centred = constant - constant.mean(dim=(1, 2), keepdim=True)
    return centred.square().mean(dim=(1, 2), keepdim=True).sqrt()


def root_mean_square(x: Tensor) -> Tensor:
    """Root of the mean square of each sample over channels and time."""
    return x.detach().square().mean(dim=(1, 2), keepdim=True).sqrt()
