"""Ready-made chains: a config in, the augmentation of a pretraining or of a downstream training out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from flatout.augment.amplitude import GPUAmplitudeScale, GPUGainEnvelope, GPUPolarityInversion
from flatout.augment.background import GPUBackgroundMix
from flatout.augment.compose import GPUCompose
from flatout.augment.filters import DEFAULT_SAMPLE_RATE, GPUBandPass, GPUHighPass, GPULowPass
from flatout.augment.geometry import GPUTimeShift, GPUTimeStretch
from flatout.augment.masks import GPUFrequencyMask, GPUTimeMask
from flatout.augment.noise import GPUColouredNoise, GPUGaussianNoise
from flatout.augment.transform import Transform
from flatout.augment.wander import GPUBaselineWander
from flatout.config import Config, load_config
from flatout.config.augmentation import AugmentationSection, BackgroundMixSection
from flatout.errors import AugmentError

CHAIN: dict[str, type[Transform]] = {
    "time_stretch": GPUTimeStretch,
    "time_shift": GPUTimeShift,
    "low_pass": GPULowPass,
    "high_pass": GPUHighPass,
    "band_pass": GPUBandPass,
    "frequency_mask": GPUFrequencyMask,
    "amplitude_scale": GPUAmplitudeScale,
    "gain_envelope": GPUGainEnvelope,
    "polarity_inversion": GPUPolarityInversion,
    "baseline_wander": GPUBaselineWander,
    "background_mix": GPUBackgroundMix,
    "coloured_noise": GPUColouredNoise,
    "gaussian_noise": GPUGaussianNoise,
    "time_mask": GPUTimeMask,
}
"""Key of the config -> class, in the order they run: what the source did first, then the room and the recorder.

The time mask comes last: a filter or noise after it would fill the gap again.
"""

PRETRAIN_ONLY = frozenset({"time_stretch", "frequency_mask", "time_mask"})
"""They can remove or change what a label stands for: a murmur, a heart rate."""

IN_HERTZ = frozenset({"low_pass", "high_pass", "band_pass", "baseline_wander"})
"""Those whose settings mean nothing without the sample rate."""

AugmentationConfig = Config | AugmentationSection | Mapping[str, Any] | None
"""What a chain is made from: a config, its `augmentation` section, the same as a mapping, or the defaults."""


def get_gpu_pretrain_transforms(
    config: AugmentationConfig = None,
    sample_rate: int = DEFAULT_SAMPLE_RATE,
    *,
    backgrounds: Tensor | None = None,
) -> GPUCompose:
    """Everything the config names: six transforms by default, the others where it has a section for them.

    Args:
        config: strengths and probabilities; see `AugmentationConfig`.
        sample_rate: of the signals, for settings in Hz; the config's own `sample_rate` goes first.
        backgrounds: (N, 1 or C, L) to mix in, as the config's `background_mix` says.

    Raises:
        ConfigError: an unknown key or an impossible value.
        AugmentError: settings that do not fit each other, or `background_mix` without backgrounds.
    """
    section = augmentation_section(config)
    return GPUCompose(_transforms(section, section.sample_rate or sample_rate, backgrounds))


def get_gpu_downstream_transforms(
    config: AugmentationConfig = None,
    sample_rate: int = DEFAULT_SAMPLE_RATE,
    training: bool = True,
    *,
    backgrounds: Tensor | None = None,
) -> GPUCompose:
    """As `get_gpu_pretrain_transforms` without stretch and masks, which can change a label.

    It is empty unless `training`.

    Raises:
        ConfigError: an unknown key or an impossible value.
        AugmentError: settings that do not fit each other, or `background_mix` without backgrounds.
    """
    section = augmentation_section(config)
    if not training:
        return GPUCompose()
    rate = section.sample_rate or sample_rate
    return GPUCompose(_transforms(section, rate, backgrounds, left_out=PRETRAIN_ONLY))


def augmentation_section(config: AugmentationConfig) -> AugmentationSection:
    """The settings that a config, its section, a mapping or nothing stands for.

    Raises:
        ConfigError: an unknown key or an impossible value.
    """
    if config is None:
        return AugmentationSection()
    if isinstance(config, AugmentationSection):
        return config
    if isinstance(config, Config):
        return config.augmentation
    return load_config({"augmentation": dict(config)}, environ={}).augmentation


def _transforms(
    section: AugmentationSection, rate: int, backgrounds: Tensor | None, left_out: frozenset[str] = frozenset()
) -> Iterator[Transform]:
    for name, kind in CHAIN.items():
        own = getattr(section, name)
        if name == "background_mix" and own is None and backgrounds is not None:
            own = BackgroundMixSection()  # whoever hands over backgrounds wants them used
        if own is not None and name not in left_out:
            yield kind(**own.model_dump(), **_beside(name, rate, backgrounds))


def _beside(name: str, rate: int, backgrounds: Tensor | None) -> dict[str, Any]:
    """What a transform is given beside its section."""
    if name in IN_HERTZ:
        return {"sample_rate": rate}
    if name != "background_mix":
        return {}
    if backgrounds is None:
        raise AugmentError(
            "augmentation.background_mix: the config asks for it, but there are no backgrounds; "
            "give backgrounds=(N, C, L), or leave the section out"
        )
    return {"backgrounds": backgrounds}
