"""GPUCompose: several augmentations one after another, each with keys of its own position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from flatout.augment.keys import SampleKeys
from flatout.augment.transform import Augmentation


class Group(Augmentation):
    """An augmentation made of others."""

    def __init__(self, transforms: Iterable[Augmentation]) -> None:
        super().__init__()
        self.transforms = nn.ModuleList(transforms)

    @property
    def members(self) -> Sequence[Augmentation]:
        """The transforms, by position."""
        return cast("Sequence[Augmentation]", self.transforms)

    def draw_members(self, x: Tensor, keys: SampleKeys) -> tuple[Any, ...]:
        """Parameters of all: none changes the shape, so they can be drawn beforehand."""
        return tuple(member.draw(x, keys.position(at)) for at, member in enumerate(self.members))


class GPUCompose(Group):
    """Apply `transforms` in order; an empty one is the identity.

    Parameters are a tuple with those of each transform. They depend on the position in the chain: one put in
    front gives the others new parameters, a changed setting of one leaves the others alone.
    """

    def __init__(self, transforms: Iterable[Augmentation] = ()) -> None:
        super().__init__(transforms)

    def forward(
        self, x: Tensor, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """The batch through every transform that is in training itself.

        Raises:
            AugmentError: `x` is not (B, C, T) of floating point, or the keys do not belong to it.
        """
        if not self.training:
            return x
        keys = self.keys_for(x, keys, generator)
        for position, member in enumerate(self.members):
            x = member(x, keys.position(position))
        return x

    def draw(self, x: Tensor, keys: SampleKeys) -> tuple[Any, ...]:
        """Parameters of each transform."""
        return self.draw_members(x, keys)

    def change(self, x: Tensor, params: tuple[Any, ...]) -> Tensor:
        """One after another."""
        for member, own in zip(self.members, params, strict=True):
            x = member.change(x, own)
        return x

    def __iter__(self) -> Iterator[Augmentation]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, position: int) -> Augmentation:
        return self.members[position]
