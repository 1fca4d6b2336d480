"""OneOf: each sample goes through one of several augmentations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flatout.augment.compose import Group
from flatout.augment.draws import Draws
from flatout.augment.keys import SampleKeys
from flatout.augment.transform import Augmentation
from flatout.errors import AugmentError


class OneOfParams(NamedTuple):
    """Parameters of `OneOf`."""

    chosen: Tensor
    """(B,) int64: position of the transform that a sample goes through."""
    inner: tuple[Any, ...]
    """Parameters of each transform."""


class OneOf(Group):
    """Apply to each sample one of `transforms`, equally often or by `weights`; its own `p` holds beside that.

    All of them run on the whole batch and the chosen result is taken: that keeps shapes fixed and the device
    busy, at the price of all. `GPUCompose([])` stands for "leave it alone".
    """

    def __init__(self, transforms: Iterable[Augmentation], weights: Sequence[float] | None = None) -> None:
        super().__init__(transforms)
        num_members = len(self.transforms)
        given = [1.0] * num_members if weights is None else [float(weight) for weight in weights]
        if len(given) != num_members or not given or min(given) < 0 or not 0 < sum(given) < float("inf"):
            raise AugmentError(
                f"OneOf: got {num_members} transforms with weights {given}, "
                "wanted one transform or more and a weight of at least 0 for each, not all 0"
            )
        self.weights = given
        self._edges = [edge / sum(given) for edge in accumulate(given)][:-1]

    def draw(self, x: Tensor, keys: SampleKeys) -> OneOfParams:
        """Which transform, and the parameters of all."""
        share = Draws(keys, 1).uniform(0)
        chosen = torch.zeros_like(keys.states)
        for edge in self._edges:
            chosen = chosen + (share >= edge)
        inner = tuple(member.draw(x, own) for member, own in self.with_keys(keys))
        return OneOfParams(chosen, inner)

    def change(self, x: Tensor, params: OneOfParams) -> Tensor:
        """The chosen result for each sample; a member that is itself in `eval()` leaves its samples alone.

        Raises:
            AugmentError: a member changes the shape, which the others keep.
        """
        result = x
        for position, member in enumerate(self.members):
            if self.is_on(member):
                is_chosen = (params.chosen == position).view(-1, *(1,) * (x.dim() - 1))
                changed = member.change(x, params.inner[position])
                if changed.shape != x.shape:
                    raise AugmentError(
                        f"OneOf: {type(member).__name__} made {tuple(changed.shape)} of {tuple(x.shape)}, "
                        "wanted the same shape from all; put what crops before or behind OneOf"
                    )
                result = torch.where(is_chosen, changed, result)
        return result
