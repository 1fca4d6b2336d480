"""The ready-made chain of images and volumes: a config in, what its `augmentation.images` names out."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.augment.affine import GPUAffine
from flatout.augment.blur import GPUBlur
from flatout.augment.crop import GPURandomCrop
from flatout.augment.cutout import GPUCutout
from flatout.augment.elastic import GPUElastic
from flatout.augment.flip import GPUFlip, GPUTurn90
from flatout.augment.image_compose import GPUImageCompose
from flatout.augment.image_noise import GPUImageNoise
from flatout.augment.image_transform import ImageTransform, Kind
from flatout.augment.intensity import GPUBrightness, GPUContrast, GPUGamma
from flatout.augment.ready import AugmentationConfig, augmentation_section
from flatout.errors import ConfigError

IMAGE_CHAIN: dict[str, type[ImageTransform]] = {
    "flip": GPUFlip,
    "turn90": GPUTurn90,
    "affine": GPUAffine,
    "random_crop": GPURandomCrop,
    "elastic": GPUElastic,
    "gamma": GPUGamma,
    "contrast": GPUContrast,
    "brightness": GPUBrightness,
    "blur": GPUBlur,
    "noise": GPUImageNoise,
    "cutout": GPUCutout,
}
"""Key of the config -> class, in the order they run.

What moves comes first and is one resampling; the crop after the affine map, so that it cuts out of what came
in; the boxes last, or noise would fill them again.
"""


def get_gpu_image_transforms(
    config: AugmentationConfig = None, kinds: Mapping[str, Kind] | None = None
) -> GPUImageCompose:
    """The transforms of images and volumes that the config names, for a tensor or for the fields of a batch.

    Args:
        config: whose `augmentation.images` counts; see `AugmentationConfig`.
        kinds: which fields of a batch are images, masks, distance maps; see `GPUImageCompose`.

    Raises:
        ConfigError: it names none, an unknown key or an impossible value.
        AugmentError: settings that do not fit each other.
    """
    named = augmentation_section(config).images.named
    if not named:
        raise ConfigError(
            "augmentation.images names no transform; give it some of "
            f"{', '.join(IMAGE_CHAIN)}, as images: {{flip: {{}}}}"
        )
    return GPUImageCompose((IMAGE_CHAIN[name](**own.model_dump()) for name, own in named.items()), kinds)
