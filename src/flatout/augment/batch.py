"""BatchAugment: a loader's batch and its epoch in, the batch augmented out; keys are the batch's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from flatout.augment.filters import DEFAULT_SAMPLE_RATE
from flatout.augment.image_compose import GPUImageCompose
from flatout.augment.image_ready import get_gpu_image_transforms
from flatout.augment.image_transform import Kind
from flatout.augment.keys import draw_keys
from flatout.augment.ready import get_gpu_downstream_transforms, get_gpu_pretrain_transforms
from flatout.augment.substructures import split_substructures_batch
from flatout.augment.transform import Augmentation
from flatout.augment.views import GPUAugmentationWrapper
from flatout.config import Config
from flatout.config.fields import SignalField
from flatout.errors import AugmentError

KEY = "key"
"""Where a loader's batch has its sample keys."""


class BatchAugment(nn.Module):
    """What a loader calls with each batch and the epoch it belongs to: `FastDataLoader(..., augment=this)`.

    The field is replaced by its augmented self; or `num_views` of them come as view1, view2, ... beside it, and
    their parts as subs1, subs2, ... In `eval()` nothing is changed: every view is the field itself.

    Args:
        transform: an augmentation of one field, or a `GPUImageCompose` with kinds, which has its own.
        field: which; absent: the only signal of the batch, (B, C, T) of floating point.
        seed: what everything is drawn from, together with the epoch and the sample keys.
        num_views: views beside the field; 0 replaces it.
        num_substructures: parts that each view is cut into; 0: none.
    """

    def __init__(
        self,
        transform: Augmentation,
        field: str | None = None,
        *,
        seed: int = 0,
        num_views: int = 0,
        num_substructures: int = 0,
    ) -> None:
        super().__init__()
        if num_substructures and not num_views:
            raise AugmentError("num_substructures cuts views into parts; it needs num_views")
        if isinstance(transform, GPUImageCompose) and transform.kinds and (num_views or field is not None):
            raise AugmentError(
                "this GPUImageCompose knows its fields by their kinds and replaces them all; "
                "leave out field and num_views, or make it without kinds for one field of images"
            )
        self.transform = GPUAugmentationWrapper(transform, num_views) if num_views else transform
        self.field = field
        self.seed = seed
        self.num_views = num_views
        self.num_substructures = num_substructures

    def forward(self, batch: Mapping[str, Tensor], epoch: int) -> dict[str, Tensor]:
        """A new dict; what is not augmented stays as it is.

        Raises:
            AugmentError: the batch has no keys, no such field, or the field is not what the transform takes.
        """
        if KEY not in batch:
            raise AugmentError(f"the batch has no '{KEY}': {', '.join(batch)}; a loader of flatout gives it")
        if isinstance(self.transform, GPUImageCompose) and self.transform.kinds:
            fields: dict[str, Tensor] = self.transform(
                batch, draw_keys(batch[KEY], seed=self.seed, epoch=epoch)
            )
            return dict(fields)
        name = self._find(batch)
        made: Any = self.transform(batch[name], draw_keys(batch[KEY], seed=self.seed, epoch=epoch))
        if not self.num_views:
            return {**batch, name: made}
        found = {f"view{number}": view for number, view in enumerate(made, start=1)}
        if self.num_substructures:
            for number, view in enumerate(made, start=1):
                found[f"subs{number}"] = split_substructures_batch(view, self.num_substructures)
        return {**batch, **found}

    def _find(self, batch: Mapping[str, Tensor]) -> str:
        if self.field is not None:
            if self.field not in batch:
                raise AugmentError(f"the batch has no field '{self.field}'; it has: {', '.join(batch)}")
            return self.field
        found = [name for name, value in batch.items() if _is_signal(value)]
        if len(found) != 1:
            problem = f"several: {', '.join(found)}" if found else f"none among: {', '.join(batch)}"
            raise AugmentError(f"which field is the signal? There are {problem}. Give BatchAugment(field=...)")
        return found[0]

    def extra_repr(self) -> str:
        """The settings, for `print`."""
        views = f"num_views={self.num_views}, num_substructures={self.num_substructures}"
        return f"field={self.field}, seed={self.seed}, {views}"


def _is_signal(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 3 and value.is_floating_point()


def augment_from_config(
    config: Config,
    *,
    field: str | None = None,
    kinds: Mapping[str, Kind] | None = None,
    num_views: int = 0,
    num_substructures: int = 0,
    backgrounds: Tensor | None = None,
) -> BatchAugment | None:
    """What the config's `use_gpu_augment`, `augmentation` and `seed` ask for; None where it is off.

    Views are those of a pretraining; without them the signal is replaced as in a downstream training. With
    `kinds` the fields that they name are replaced, by what `augmentation.images` says.

    Raises:
        ConfigError, AugmentError: an impossible setting.
    """
    if not config.use_gpu_augment:
        return None
    chain: Augmentation
    if kinds is not None:
        chain = get_gpu_image_transforms(config, kinds)
    else:
        make = get_gpu_pretrain_transforms if num_views else get_gpu_downstream_transforms
        chain = make(config, _rate(config, field), backgrounds=backgrounds)
    return BatchAugment(
        chain, field, seed=config.seed, num_views=num_views, num_substructures=num_substructures
    )


def _rate(config: Config, field: str | None) -> int:
    """Samples a second of the signal, as the config's fields say; what the guides assume where they do not."""
    asked = [own for name, own in config.fields.items() if field in (None, name)]
    rates = {own.rate for own in asked if isinstance(own, SignalField) and own.rate is not None}
    return rates.pop() if len(rates) == 1 else DEFAULT_SAMPLE_RATE
