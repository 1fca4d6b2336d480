"""What varies a sample on the device: switches of the augmentation and the strength of each transform."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from flatout.config.section import Section


class TransformSection(Section):
    """What every transform has."""

    p: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability that a sample is changed."""


class TimeShiftSection(TransformSection):
    """Roll the signal along time."""

    max_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest shift, as a share of the length."""


class AmplitudeScaleSection(TransformSection):
    """Multiply the signal by one number."""

    range: tuple[PositiveFloat, PositiveFloat] = (0.8, 1.2)
    """Smallest and largest factor."""


class GaussianNoiseSection(TransformSection):
    """Add white noise."""

    std: NonNegativeFloat = 0.01
    """Deviation of the noise, as a share of the sample's own deviation."""


class TimeMaskSection(TransformSection):
    """Set stretches of time to zero."""

    num_masks: NonNegativeInt = 1
    """Stretches a sample."""
    max_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Longest stretch, as a share of the length."""


class FrequencyMaskSection(TransformSection):
    """Remove a band of frequencies."""

    max_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Widest band, as a share of the spectrum."""


class TimeStretchSection(TransformSection):
    """Play the signal slower or faster at the same length."""

    range: tuple[PositiveFloat, PositiveFloat] = (0.9, 1.1)
    """Smallest and largest factor of duration."""


class AugmentationSection(Section):
    """The transforms and their strength."""

    sample_rate: PositiveInt | None = None
    """Samples a second of the signal; absent: the store's."""
    time_shift: TimeShiftSection = Field(default_factory=TimeShiftSection)
    """Roll along time."""
    amplitude_scale: AmplitudeScaleSection = Field(default_factory=AmplitudeScaleSection)
    """Multiply by one number."""
    gaussian_noise: GaussianNoiseSection = Field(default_factory=GaussianNoiseSection)
    """Add white noise."""
    time_mask: TimeMaskSection = Field(default_factory=TimeMaskSection)
    """Set stretches of time to zero."""
    frequency_mask: FrequencyMaskSection = Field(default_factory=FrequencyMaskSection)
    """Remove a band of frequencies."""
    time_stretch: TimeStretchSection = Field(default_factory=TimeStretchSection)
    """Slower or faster at the same length."""


class AugmentSettings(Section):
    """Settings of augmentation."""

    use_gpu_augment: bool = False
    """Augment whole batches on the training device instead of sample by sample in the workers."""
    view_cache_refresh_epochs: PositiveInt = 5
    """Epochs that precomputed views are used before they are drawn again: more is faster, less varied."""
    augmentation: AugmentationSection = Field(default_factory=AugmentationSection)
    """The transforms and their strength."""
