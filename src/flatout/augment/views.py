"""GPUAugmentationWrapper: two or more views of every sample in one pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flatout.augment.checks import checked_least
from flatout.augment.keys import SampleKeys
from flatout.augment.transform import Augmentation


class GPUAugmentationWrapper(nn.Module):
    """(B, C, T) in, a tuple of `num_views` such tensors out: as one batch of num_views x B through `transform`.

    View v equals `transform(x, keys.view(v))`. In `eval()` every view is the batch itself.
    """

    def __init__(self, transform: Augmentation, num_views: int = 2) -> None:
        super().__init__()
        self.transform = transform
        self.num_views = checked_least("num_views", num_views, 1)

    def forward(
        self, x: Tensor, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, ...]:
        """The views of a batch.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point, or the keys do not belong to it.
        """
        if not self.training:
            return (x,) * self.num_views
        keys = self.transform.keys_for(x, keys, generator)
        states = torch.cat([keys.view(number).states for number in range(self.num_views)])
        augmented = self.transform(x.repeat(self.num_views, *(1,) * (x.dim() - 1)), SampleKeys(states))
        return tuple(augmented.chunk(self.num_views))

    def extra_repr(self) -> str:
        """The settings, for `print`."""
        return f"num_views={self.num_views}"
