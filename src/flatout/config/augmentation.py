"""What varies a sample on the device: switches of the augmentation and the strength of each transform."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from flatout.config.image_augmentation import ImagesSection
from flatout.config.section import Section, TransformSection


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


class PolarityInversionSection(TransformSection):
    """Turn the signal upside down."""


class LowPassSection(TransformSection):
    """Weaken high frequencies."""

    cutoff_hz: tuple[PositiveFloat, PositiveFloat] = (200.0, 1000.0)
    """Lowest and highest cut-off."""
    order: PositiveInt = 4
    """Steepness: order of the Butterworth filter, which runs forwards and backwards."""


class HighPassSection(TransformSection):
    """Weaken low frequencies."""

    cutoff_hz: tuple[PositiveFloat, PositiveFloat] = (20.0, 100.0)
    """Lowest and highest cut-off."""
    order: PositiveInt = 4
    """Steepness: order of the Butterworth filter, which runs forwards and backwards."""


class BandPassSection(TransformSection):
    """Weaken both ends of the spectrum."""

    low_hz: tuple[PositiveFloat, PositiveFloat] = (20.0, 60.0)
    """Lowest and highest lower end of the band."""
    high_hz: tuple[PositiveFloat, PositiveFloat] = (300.0, 800.0)
    """Lowest and highest upper end of the band."""
    order: PositiveInt = 4
    """Steepness: order of the Butterworth filter, which runs forwards and backwards."""


class ColouredNoiseSection(TransformSection):
    """Add noise whose power falls with frequency."""

    std: NonNegativeFloat = 0.05
    """Deviation of the noise, as a share of the sample's own deviation."""
    exponent: tuple[float, float] = (0.0, 2.0)
    """Smallest and largest a of 1 / f^a: 0 is white, 1 pink, 2 brown."""


class BackgroundMixSection(TransformSection):
    """Mix in recordings of something else, which the code hands over."""

    snr_db: tuple[float, float] = (5.0, 20.0)
    """Smallest and largest distance below the sample, in decibels."""


class GainEnvelopeSection(TransformSection):
    """Multiply the signal by a gain that changes smoothly over time."""

    range: tuple[PositiveFloat, PositiveFloat] = (0.7, 1.3)
    """Smallest and largest gain."""
    num_points: int = Field(default=5, ge=2)
    """Points, from the first value to the last, that the gain is drawn for."""


class BaselineWanderSection(TransformSection):
    """Add a slow drift."""

    amplitude: tuple[PositiveFloat, PositiveFloat] = (0.05, 0.3)
    """Smallest and largest peak of the drift, as a share of the sample's own deviation."""
    frequency_hz: tuple[PositiveFloat, PositiveFloat] = (0.05, 0.5)
    """Slowest and fastest wave."""
    num_waves: PositiveInt = 3
    """Waves whose mean is the drift."""


class AugmentationSection(Section):
    """The transforms and their strength."""

    sample_rate: PositiveInt | None = None
    """Samples a second of the signal; absent: what its field or store says, else 5000."""
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
    polarity_inversion: PolarityInversionSection | None = None
    """Turn upside down; absent: not done."""
    low_pass: LowPassSection | None = None
    """Weaken high frequencies; absent: not done."""
    high_pass: HighPassSection | None = None
    """Weaken low frequencies; absent: not done."""
    band_pass: BandPassSection | None = None
    """Weaken both ends of the spectrum; absent: not done."""
    coloured_noise: ColouredNoiseSection | None = None
    """Add noise that falls with frequency; absent: not done."""
    background_mix: BackgroundMixSection | None = None
    """Mix in other recordings; absent: not done."""
    gain_envelope: GainEnvelopeSection | None = None
    """Let the gain change over time; absent: not done."""
    baseline_wander: BaselineWanderSection | None = None
    """Add a slow drift; absent: not done."""
    images: ImagesSection = Field(default_factory=ImagesSection)
    """The transforms of images and volumes; none unless named."""


class AugmentSettings(Section):
    """Settings of augmentation."""

    use_gpu_augment: bool = False
    """Augment whole batches on the training device instead of sample by sample in the workers."""
    view_cache_refresh_epochs: PositiveInt = 5
    """Epochs that precomputed views are used before they are drawn again: more is faster, less varied."""
    augmentation: AugmentationSection = Field(default_factory=AugmentationSection)
    """The transforms and their strength."""
