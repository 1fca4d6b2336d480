"""GPUCompose: several augmentations one after another, each with keys of its own position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from flatout.augment.draws import position_keys
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

    def check(self, x: Tensor, owner: str) -> None:
        """Refuse what a member cannot take."""
        for member in self.members:
            member.check(x, owner)

    def is_on(self, member: Augmentation) -> bool:
        """Whether a member takes part: not if it alone is in `eval()`."""
        return member.training or not self.training

    def with_keys(self, keys: SampleKeys) -> Iterable[tuple[Augmentation, SampleKeys]]:
        """Each transform with the keys of its position."""
        num_draws = [1 + getattr(member, "num_draws", 0) for member in self.members]
        return zip(self.members, position_keys(keys, num_draws), strict=True)


class Chain(Group):
    """Augmentations one after another; their parameters are a tuple with those of each."""

    def draw(self, x: Tensor, keys: SampleKeys) -> tuple[Any, ...]:
        """Parameters of each transform, for the shape that those before it leave."""
        params = []
        for member, own in self.with_keys(keys):
            params.append(member.draw(x, own))
            x = member.like(x) if self.is_on(member) else x
        return tuple(params)

    def like(self, x: Tensor) -> Tensor:
        """A tensor of the shape that all of them leave."""
        for member in self.members:
            x = member.like(x) if self.is_on(member) else x
        return x

    def __iter__(self) -> Iterator[Augmentation]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, position: int) -> Augmentation:
        return self.members[position]


class GPUCompose(Chain):
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
        for member, own in self.with_keys(keys):
            x = member(x, own)
        return x

    def change(self, x: Tensor, params: tuple[Any, ...]) -> Tensor:
        """One after another; a member that is itself in `eval()` leaves the batch alone."""
        for member, own in zip(self.members, params, strict=True):
            x = member.change(x, own) if self.is_on(member) else x
        return x
