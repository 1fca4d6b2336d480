"""Recalls: how many samples of each class were found, over all batches of an evaluation."""

from __future__ import annotations

import torch
from torch import Tensor


class Recalls:
    """Counts by class; the mean of their shares is the balanced accuracy, 1 / classes by chance.

    A class without samples does not count. No buffers: DDP would give every rank those of the first.
    """

    def __init__(self, num_classes: int) -> None:
        self.counts = torch.zeros(2, num_classes)
        """Found, and all, of each class."""

    def add(self, label: Tensor, is_right: Tensor, valid: Tensor | None) -> None:
        """Samples, (B,) each, those that `valid` rules out left out; no synchronisation."""
        if self.counts.device != label.device:
            self.counts = self.counts.to(label.device)
        counts = torch.ones_like(is_right) if valid is None else valid.to(is_right.dtype)
        self.counts[0].index_add_(0, label, is_right * counts)
        self.counts[1].index_add_(0, label, counts)

    def reset(self) -> None:
        """Begin anew."""
        self.counts.zero_()

    def balanced(self, counts: Tensor | None = None) -> Tensor:
        """The mean share over the classes that there were; `counts` of all ranks in place of this one's."""
        right, total = self.counts if counts is None else counts
        mean: Tensor = (right / total.clamp(min=1)).sum() / (total > 0).sum().clamp(min=1)
        return mean
