"""Transforms of whole batches on the device: drawn by sample key, then applied."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.augment.affine import GPUAffine as GPUAffine
    from flatout.augment.amplitude import GPUAmplitudeScale as GPUAmplitudeScale
    from flatout.augment.amplitude import GPUGainEnvelope as GPUGainEnvelope
    from flatout.augment.amplitude import GPUPolarityInversion as GPUPolarityInversion
    from flatout.augment.background import GPUBackgroundMix as GPUBackgroundMix
    from flatout.augment.batch import BatchAugment as BatchAugment
    from flatout.augment.batch import augment_from_config as augment_from_config
    from flatout.augment.blur import GPUBlur as GPUBlur
    from flatout.augment.compose import GPUCompose as GPUCompose
    from flatout.augment.crop import GPURandomCrop as GPURandomCrop
    from flatout.augment.cutout import GPUCutout as GPUCutout
    from flatout.augment.elastic import GPUElastic as GPUElastic
    from flatout.augment.filters import GPUBandPass as GPUBandPass
    from flatout.augment.filters import GPUHighPass as GPUHighPass
    from flatout.augment.filters import GPULowPass as GPULowPass
    from flatout.augment.flip import GPUFlip as GPUFlip
    from flatout.augment.flip import GPUTurn90 as GPUTurn90
    from flatout.augment.geometry import GPUTimeShift as GPUTimeShift
    from flatout.augment.geometry import GPUTimeStretch as GPUTimeStretch
    from flatout.augment.image_compose import GPUImageCompose as GPUImageCompose
    from flatout.augment.image_noise import GPUImageNoise as GPUImageNoise
    from flatout.augment.image_ready import get_gpu_image_transforms as get_gpu_image_transforms
    from flatout.augment.intensity import GPUBrightness as GPUBrightness
    from flatout.augment.intensity import GPUContrast as GPUContrast
    from flatout.augment.intensity import GPUGamma as GPUGamma
    from flatout.augment.keys import SampleKeys as SampleKeys
    from flatout.augment.keys import draw_keys as draw_keys
    from flatout.augment.masks import GPUFrequencyMask as GPUFrequencyMask
    from flatout.augment.masks import GPUTimeMask as GPUTimeMask
    from flatout.augment.mix import CutMix as CutMix
    from flatout.augment.mix import MixUp as MixUp
    from flatout.augment.noise import GPUColouredNoise as GPUColouredNoise
    from flatout.augment.noise import GPUGaussianNoise as GPUGaussianNoise
    from flatout.augment.one_of import OneOf as OneOf
    from flatout.augment.ready import get_gpu_downstream_transforms as get_gpu_downstream_transforms
    from flatout.augment.ready import get_gpu_pretrain_transforms as get_gpu_pretrain_transforms
    from flatout.augment.substructures import split_substructures_batch as split_substructures_batch
    from flatout.augment.transform import Transform as Transform
    from flatout.augment.views import GPUAugmentationWrapper as GPUAugmentationWrapper
    from flatout.augment.wander import GPUBaselineWander as GPUBaselineWander

_HOMES = {
    "draw_keys": "keys",
    "SampleKeys": "keys",
    "Transform": "transform",
    "GPUCompose": "compose",
    "OneOf": "one_of",
    "GPUAugmentationWrapper": "views",
    "BatchAugment": "batch",
    "augment_from_config": "batch",
    "get_gpu_pretrain_transforms": "ready",
    "get_gpu_downstream_transforms": "ready",
    "get_gpu_image_transforms": "image_ready",
    "split_substructures_batch": "substructures",
    "GPUTimeShift": "geometry",
    "GPUTimeStretch": "geometry",
    "GPUAmplitudeScale": "amplitude",
    "GPUPolarityInversion": "amplitude",
    "GPUGainEnvelope": "amplitude",
    "GPUGaussianNoise": "noise",
    "GPUColouredNoise": "noise",
    "GPUTimeMask": "masks",
    "GPUFrequencyMask": "masks",
    "GPULowPass": "filters",
    "GPUHighPass": "filters",
    "GPUBandPass": "filters",
    "GPUBackgroundMix": "background",
    "GPUBaselineWander": "wander",
    "GPUImageCompose": "image_compose",
    "GPUFlip": "flip",
    "GPUTurn90": "flip",
    "GPURandomCrop": "crop",
    "GPUAffine": "affine",
    "GPUElastic": "elastic",
    "GPUBrightness": "intensity",
    "GPUContrast": "intensity",
    "GPUGamma": "intensity",
    "GPUImageNoise": "image_noise",
    "GPUBlur": "blur",
    "GPUCutout": "cutout",
    "MixUp": "mix",
    "CutMix": "mix",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
