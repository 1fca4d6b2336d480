"""What varies an image or a volume on the device: the strength of each transform."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from flatout.config.section import Section, TransformSection

Axis = Annotated[int, Field(ge=-3, le=-1)]
"""-1 is the width, -2 the height, -3 the depth."""
Padding = Literal["zeros", "border"]
"""What lies outside of an image or mask: zeros, or the nearest value of the border."""

MOST_FRACTION = 0.2
"""A cubic spline is at most 1.5 times as steep as its points are large: 0.2 on three axes stays below 1."""


class FlipSection(TransformSection):
    """Mirror along each axis, on its own."""

    axes: Annotated[tuple[Axis, ...], Field(min_length=1)] = (-1,)
    """Which: -1 is the width, -2 the height, -3 the depth."""


class Turn90Section(TransformSection):
    """Turn by 90, 180 or 270 degrees."""

    axes: tuple[Axis, Axis] = (-2, -1)
    """The plane to turn in; it must be square."""


class AffineSection(TransformSection):
    """Rotate, scale, shear and translate about the centre, in one interpolation."""

    rotation_deg: tuple[float, float] = (-15.0, 15.0)
    """Smallest and largest angle."""
    scale: tuple[PositiveFloat, PositiveFloat] = (0.9, 1.1)
    """Smallest and largest factor; above 1 makes things larger."""
    shear_deg: tuple[float, float] = (0.0, 0.0)
    """Smallest and largest slant."""
    max_translation: float = Field(default=0.1, ge=0.0, le=1.0)
    """Largest shift either way, as a share of each axis."""
    padding: Padding = "zeros"
    """What comes in from outside: zeros, or the border's nearest value."""
    rotation_axes: Annotated[tuple[Axis, ...], Field(min_length=1)] = (-3, -2, -1)
    """Of volumes, the axes to turn about."""
    spacing: Annotated[tuple[PositiveFloat, ...], Field(min_length=2, max_length=3)] | None = None
    """Size of a value along each axis, in one unit, to turn and slant in; absent: all alike."""


class RandomCropSection(Section):
    """Cut a window out, anywhere it fits."""

    size: Annotated[tuple[PositiveInt, ...], Field(min_length=2, max_length=3)]
    """Height and width, or depth, height and width."""


class ElasticSection(TransformSection):
    """Bend by a smooth field."""

    num_cells: PositiveInt = 4
    """Cells along each axis, whose corners are moved."""
    max_fraction: float = Field(default=MOST_FRACTION, ge=0.0, le=MOST_FRACTION)
    """How far, as a share of a cell; more would fold the picture."""
    padding: Padding = "zeros"
    """What comes in from outside: zeros, or the border's nearest value."""


class GammaSection(TransformSection):
    """Bend the values between the sample's smallest and largest."""

    range: tuple[PositiveFloat, PositiveFloat] = (0.7, 1.5)
    """Smallest and largest exponent."""


class ContrastSection(TransformSection):
    """Multiply the difference from the sample's mean."""

    range: tuple[PositiveFloat, PositiveFloat] = (0.75, 1.25)
    """Smallest and largest factor."""


class BrightnessSection(TransformSection):
    """Add one number."""

    range: tuple[float, float] = (-0.3, 0.3)
    """Smallest and largest, as a share of the sample's own deviation."""


class BlurSection(TransformSection):
    """Average each value with its neighbours under a bell."""

    sigma: tuple[PositiveFloat, PositiveFloat] = (0.5, 1.5)
    """Smallest and largest deviation of the bell, in values."""


class ImageNoiseSection(TransformSection):
    """Add white noise."""

    std: NonNegativeFloat = 0.1
    """Deviation of the noise, as a share of the sample's own deviation."""


class CutoutSection(TransformSection):
    """Fill boxes with one value."""

    num_boxes: PositiveInt = 1
    """Boxes a sample."""
    max_fraction: float = Field(default=0.3, ge=0.0, le=1.0)
    """Longest side, as a share of each axis."""
    fill: float = 0.0
    """What they are filled with."""


class ImagesSection(Section):
    """The transforms of images and volumes that are done, in this order; masks follow the first five."""

    flip: FlipSection | None = None
    """Mirror; absent: not done."""
    turn90: Turn90Section | None = None
    """Quarter turns; absent: not done."""
    affine: AffineSection | None = None
    """Rotate, scale, shear, translate; absent: not done."""
    random_crop: RandomCropSection | None = None
    """Cut a window out; absent: not done."""
    elastic: ElasticSection | None = None
    """Bend by a smooth field; absent: not done."""
    gamma: GammaSection | None = None
    """Bend the values; absent: not done."""
    contrast: ContrastSection | None = None
    """More or less contrast; absent: not done."""
    brightness: BrightnessSection | None = None
    """Brighter or darker; absent: not done."""
    blur: BlurSection | None = None
    """Blur; absent: not done."""
    noise: ImageNoiseSection | None = None
    """Add white noise; absent: not done."""
    cutout: CutoutSection | None = None
    """Fill boxes; absent: not done."""

    @property
    def named(self) -> dict[str, Section]:
        """Those that are done, by name."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: own for name, own in found.items() if own is not None}
