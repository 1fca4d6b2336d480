"""Transforms of whole batches on the device: drawn by sample key, then applied."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.augment.amplitude import GPUAmplitudeScale as GPUAmplitudeScale
    from flatout.augment.amplitude import GPUGainEnvelope as GPUGainEnvelope
    from flatout.augment.amplitude import GPUPolarityInversion as GPUPolarityInversion
    from flatout.augment.background import GPUBackgroundMix as GPUBackgroundMix
    from flatout.augment.compose import GPUCompose as GPUCompose
    from flatout.augment.filters import GPUBandPass as GPUBandPass
    from flatout.augment.filters import GPUHighPass as GPUHighPass
    from flatout.augment.filters import GPULowPass as GPULowPass
    from flatout.augment.geometry import GPUTimeShift as GPUTimeShift
    from flatout.augment.geometry import GPUTimeStretch as GPUTimeStretch
    from flatout.augment.keys import SampleKeys as SampleKeys
    from flatout.augment.keys import draw_keys as draw_keys
    from flatout.augment.masks import GPUFrequencyMask as GPUFrequencyMask
    from flatout.augment.masks import GPUTimeMask as GPUTimeMask
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
    "get_gpu_pretrain_transforms": "ready",
    "get_gpu_downstream_transforms": "ready",
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
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
