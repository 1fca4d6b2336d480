"""KL annealing: how much the divergence from the prior counts, by step; and what of it is free."""

from __future__ import annotations

from torch import Tensor

from flatout.config.train import AnnealingSection


def kl_weight(section: AnnealingSection, step: int, num_steps: int) -> float:
    """The weight at an optimiser's step: from 0 in a straight line to the full one, which then stays.

    Args:
        num_steps: steps of the whole run, which a warm-up given as a share is a share of.
    """
    warmup = section.warmup
    num_warmup = warmup if isinstance(warmup, int) else round(warmup * num_steps)
    return section.weight * min(1.0, step / num_warmup) if num_warmup else section.weight


def kl_of_units(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Nats from the standard normal prior, (B, L): one number a sample and unit."""
    return 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance)


def charged(kl: Tensor, free_nats: float) -> Tensor:
    """What of it is paid for, (B, L) in, (B,) out: the first `free_nats` of a unit cost the same if unused."""
    return (kl.clamp(min=free_nats) if free_nats else kl).sum(-1)
