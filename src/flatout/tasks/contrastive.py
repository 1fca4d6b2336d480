"""Contrastive losses: two views of one sample are alike, views of others are not; on cycles and on their parts.

One level compares whole cycles. The one below it compares parts (first sound, systole, second sound, diastole):
a part is like the same part of the other view, and unlike every other part of the batch, those of its own cycle
among them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 0.2
"""Scale of similarities: smaller looks at the nearest of the others alone."""
PART_WEIGHT = 0.5
"""How much the parts count beside the cycles."""


class Contrast(NamedTuple):
    """What a comparison of two views gives for each sample: (B,)."""

    loss: Tensor
    is_found: Tensor
    """1 where the other view of the sample is the most similar of all; the mean of both directions."""


def contrast(first: Tensor, second: Tensor, valid: Tensor | None = None) -> Contrast:
    """Embeddings of two views, each (B, D), in; the normalised cross entropy of each sample out.

    A view is to be told apart from the 2 B - 2 views of other samples. Samples that `valid` rules out are no
    such others; their own numbers mean nothing.
    """
    num = first.shape[0]
    views = functional.normalize(torch.cat([first, second]).float(), dim=1)
    similarity = views @ views.t() / TEMPERATURE
    barred = torch.eye(2 * num, dtype=torch.bool, device=views.device)
    if valid is not None:
        barred = barred | ~valid.repeat(2)
    own = torch.arange(2 * num, device=views.device).roll(num)
    # The other view stays in every row, also in those of samples that do not count: an empty row is NaN.
    barred = barred.scatter(1, own[:, None], False)
    similarity = similarity.masked_fill(barred, -torch.inf)
    loss = functional.cross_entropy(similarity, own, reduction="none")
    found = (similarity.argmax(1) == own).float()
    return Contrast(loss.view(2, num).mean(0), found.view(2, num).mean(0))


def contrast_parts(first: Tensor, second: Tensor, valid: Tensor | None = None) -> Contrast:
    """Embeddings of the parts of two views, each (B, S, D), in; the mean over each sample's parts out."""
    num, num_parts = first.shape[:2]
    repeated = None if valid is None else valid.repeat_interleave(num_parts)
    found = contrast(first.flatten(0, 1), second.flatten(0, 1), repeated)
    return Contrast(*(value.view(num, num_parts).mean(1) for value in found))
