"""GPUImageCompose: one draw for all fields of a batch, and one resampling for what moves one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flatout.augment.compose import Chain
from flatout.augment.image_run import ImageRun
from flatout.augment.image_transform import Intensity, Kind, Spatial, check_field, check_kind
from flatout.augment.keys import SampleKeys
from flatout.augment.precision import narrowed, widened
from flatout.augment.transform import Augmentation, Transform
from flatout.errors import AugmentError

Fields = Mapping[str, Any]
"""A batch: names and tensors, and whatever else there is."""


class GPUImageCompose(Chain):
    """Apply transforms of images or volumes in order to an image, or to all fields of a batch that have a kind.

    `kinds` says which entries of a batch are images, masks or distance maps; all others pass through. The
    latter two may lack the channel. Flips, turns, crops and affine maps that follow each other, and an
    elastic one at their end, are one resampling; so what one of them moves out of the picture, the next may
    move in again.
    """

    def __init__(
        self, transforms: Iterable[Augmentation] = (), kinds: Mapping[str, Kind] | None = None
    ) -> None:
        super().__init__(transforms)
        self.kinds = dict(kinds or {})
        for member in self.members:
            _check_member(member)
        for name, kind in self.kinds.items():
            check_kind(f"GPUImageCompose: {name}", kind)
        if kinds is not None and "image" not in self.kinds.values():
            raise AugmentError(
                f"kinds: got {self.kinds}, wanted at least one field of kind 'image' to draw for"
            )

    def forward(
        self, x: Tensor | Fields, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> Any:
        """The augmented image, or a new batch with its fields augmented.

        Raises:
            AugmentError: a field is missing or does not fit its kind, or the keys do not belong to the batch.
        """
        if not self.training:
            return x
        params = self.sample(x, keys, generator)
        return self.apply(x, params)

    def sample(
        self, x: Tensor | Fields, keys: SampleKeys | None = None, generator: torch.Generator | None = None
    ) -> tuple[Any, ...]:
        """Parameters of each transform, for an image or for all fields of a batch.

        Raises:
            AugmentError: a field is missing or does not fit its kind, or the keys do not belong to the batch.
        """
        image = x if isinstance(x, Tensor) else self._first_image(x)
        return self.draw(image, self.keys_for(image, keys, generator))

    def apply(
        self, x: Tensor | Fields | Callable[[nn.Module], None], params: Any = None, kind: Kind = "image"
    ) -> Any:
        """A field of this kind, or all fields of a batch, changed as the parameters say, in `eval()` too.

        Raises:
            AugmentError: a field is missing or does not fit its kind.
        """
        if isinstance(x, Tensor):
            check_field(type(self).__name__, x, kind)
            return self.change(x, params, kind)
        if not isinstance(x, Mapping):
            return super().apply(x)
        changed = {}
        for name, field in self._fields(x).items():
            made = self.change(field, params, self.kinds[name])
            changed[name] = made if x[name].dim() == field.dim() else made[:, 0]
        return {**x, **changed}

    def check(self, x: Tensor, owner: str) -> None:
        """Refuse what is no batch of images."""
        check_field(owner, x, "image")

    def change(self, x: Tensor, params: tuple[Any, ...], kind: Kind = "image") -> Tensor:
        """One field through all transforms that are in training themselves."""
        wide = widened(x) if kind == "image" else x
        run = ImageRun(wide, kind, is_own=wide is not x)
        for member, own in zip(self.members, params, strict=True):
            if not self.is_on(member) or getattr(member, "p", None) == 0.0:
                continue
            if isinstance(member, Spatial):
                run.move(member, own)
            elif kind == "image":
                run.alter(member, own)
        return narrowed(run.finish(), x.dtype)

    def _first_image(self, batch: Fields) -> Tensor:
        return next(field for name, field in self._fields(batch).items() if self.kinds[name] == "image")

    def _fields(self, batch: Fields) -> dict[str, Tensor]:
        """Those that have a kind, each with a channel: all there, fit for it, of one number and size."""
        self._check_names(batch)
        first = next(name for name, kind in self.kinds.items() if kind == "image")
        num_axes = batch[first].dim()
        fields, shapes = {}, {}
        for name, kind in self.kinds.items():
            # Labels for a loss often come without a channel, (B, H, W).
            lacks_channel = kind != "image" and batch[name].dim() == num_axes - 1
            fields[name] = batch[name][:, None] if lacks_channel else batch[name]
            check_field(f"GPUImageCompose: {name}", fields[name], kind)
            shapes[name] = (len(fields[name]), *fields[name].shape[2:])
        if len(set(shapes.values())) > 1:
            raise AugmentError(
                f"GPUImageCompose: got samples and sizes {shapes}, wanted the same for all fields"
            )
        return fields

    def _check_names(self, batch: Fields) -> None:
        if not self.kinds:
            raise AugmentError(
                "GPUImageCompose: got a batch of fields, wanted kinds={'image': 'image', ...} to read it"
            )
        missing = [name for name in self.kinds if not isinstance(batch.get(name), Tensor)]
        if missing:
            raise AugmentError(
                f"GPUImageCompose: got a batch of {', '.join(map(str, batch))}, "
                f"wanted tensors for {', '.join(missing)} too"
            )


def _check_member(member: Augmentation) -> None:
    leaves = [leaf for leaf in member.modules() if isinstance(leaf, Transform)]
    if isinstance(member, Spatial) or all(isinstance(leaf, Intensity) for leaf in leaves):
        return
    if any(isinstance(leaf, Spatial) for leaf in leaves):
        raise AugmentError(
            f"GPUImageCompose: got a {type(member).__name__} with transforms of space in it, "
            "wanted these as members of the chain itself: masks could not follow"
        )
    raise AugmentError(
        f"GPUImageCompose: got a {type(member).__name__}, wanted transforms of images and volumes"
    )
