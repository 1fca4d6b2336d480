"""The same five steps in other libraries, with the settings that are fastest for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from flatout.bench.augment_images import Strength


def kornia_images(strength: Strength, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """kornia on a whole batch of images."""
    import kornia.augmentation as kornia

    chain = kornia.AugmentationSequential(
        kornia.RandomHorizontalFlip(p=1.0),
        kornia.RandomAffine(
            strength.rotation_deg,
            (strength.translation, strength.translation),
            (1.0 - strength.scale, 1.0 + strength.scale),
            p=1.0,
        ),
        kornia.RandomBrightness((1.0 - strength.brightness, 1.0 + strength.brightness), clip_output=False),
        kornia.RandomContrast((1.0 - strength.contrast, 1.0 + strength.contrast), clip_output=False),
        kornia.RandomGaussianNoise(0.0, strength.noise, p=1.0),
        data_keys=["input"],
    )

    def run(x: Tensor) -> Tensor:
        made: Tensor = chain(x)
        return made

    return run


def monai_volumes(strength: Strength, shape: tuple[int, ...]) -> Callable[[Tensor], list[Any]]:
    """MONAI on one volume after another: it has no transforms of batches."""
    import monai.data
    import monai.transforms as monai_transforms

    monai.data.set_track_meta(False)  # a history of every volume costs time, and nobody reads it here
    angle = math.radians(strength.rotation_deg)
    chain = monai_transforms.Compose(
        [
            monai_transforms.RandFlip(prob=1.0, spatial_axis=2),
            monai_transforms.RandAffine(
                prob=1.0,
                rotate_range=(angle,) * 3,
                scale_range=(strength.scale,) * 3,
                translate_range=tuple(size * strength.translation for size in shape[2:]),
                spatial_size=shape[2:],
                padding_mode="zeros",
                cache_grid=True,
            ),
            monai_transforms.RandStdShiftIntensity(strength.brightness, prob=1.0),
            monai_transforms.RandScaleIntensityFixedMean(prob=1.0, factors=strength.contrast),
            monai_transforms.RandGaussianNoise(prob=1.0, std=strength.noise),
        ]
    )
    return lambda x: [chain(volume) for volume in x]
