"""What a sample consists of: one section per field kind, each parameter of its preprocessing in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt

from flatout.config.section import Section

Encoding = Literal["none", "float16", "bfloat16", "uint8", "int16"]
Compression = Literal["none", "zstd", "gzip"]
Normalise = Literal["none", "fixed", "sample", "percentile", "unit"]
Channels = Literal["refuse", "first", "mean", "keep"]
Triple = tuple[PositiveInt, PositiveInt, PositiveInt]
Pair = tuple[PositiveInt, PositiveInt]


class FieldSection(Section):
    """Settings every kind of field has."""

    column: str | None = None
    """Manifest column that holds the path or the value; the field's own name when absent."""
    dtype: str | None = None
    """NumPy dtype of the stored array, before encoding; each kind has its default."""
    encoding: Encoding = "none"
    """How values shrink on disk; restored by the loader. float16 halves float32, uint8 quarters it."""
    range: tuple[float, float] | None = None
    """Value range that uint8 and int16 span; absent: each sample's own minimum and maximum."""
    compression: Compression = "none"
    """Compression of each sample. `none` is read at memory speed; others trade CPU time for bytes."""
    allow_nonfinite: bool = False
    """Accept NaN and infinities instead of sending the sample to quarantine."""
    ragged: bool | None = None
    """Samples differ in shape. Absent: decided by the first samples; others are then quarantined."""


class NormaliseSection(FieldSection):
    """Settings of the fields whose intensities are normalised."""

    normalise: Normalise = "none"
    """`fixed`: (x - mean) / std as given; `sample`: by the sample's own mean and deviation;
    `percentile`: the two percentiles become 0 and 1; `unit`: window or dtype range becomes 0..1."""
    mean: float | list[float] = 0.0
    """Mean for `fixed`; one number, or one a channel."""
    std: PositiveFloat | list[PositiveFloat] = 1.0
    """Standard deviation for `fixed`; one number, or one a channel."""
    percentiles: tuple[float, float] = (0.5, 99.5)
    """Lower and upper percentile for `percentile`, 0 to 100."""


class VolumeField(NormaliseSection):
    """A 3-D scan: NIfTI, DICOM series folder, or npy. Stored as (C, X, Y, Z)."""

    kind: Literal["volume"] = "volume"
    orientation: str | None = "RAS"
    """Axes are turned to this orientation without resampling; null keeps the file's order."""
    spacing: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None
    """Voxel size in mm that the volume is resampled to."""
    window: tuple[float, float] | None = None
    """Lowest and highest intensity kept; values outside are clipped."""
    size: Triple | None = None
    """Voxels along each axis after `fit`."""
    fit: Literal["crop_pad", "resize"] = "crop_pad"
    """How `size` is reached: crop and pad around the centre, or interpolate."""
    pad_value: float | None = None
    """Value of padded voxels; absent: the volume's minimum."""
    channels: Channels = "refuse"
    """4-D, 5-D and RGB volumes: refuse, take the first, average, or keep as channels."""


class ImageField(NormaliseSection):
    """A 2-D picture: png, jpg, tiff, bmp, single DICOM, npy. Stored as (C, H, W)."""

    kind: Literal["image"] = "image"
    mode: Literal["auto", "L", "RGB"] = "auto"
    """`L`: one grey channel; `RGB`: three; `auto`: as the file has it (alpha is dropped)."""
    window: tuple[float, float] | None = None
    """Lowest and highest intensity kept (DICOM); values outside are clipped."""
    size: Pair | None = None
    """Height and width after `fit`."""
    fit: Literal["crop_pad", "resize"] = "resize"
    """How `size` is reached: interpolate, or crop and pad around the centre."""
    pad_value: float | None = 0.0
    """Value of padded pixels; null: the image's minimum."""


class MaskField(FieldSection):
    """A label map with the geometry of an image or volume, nearest neighbour. Stored as (1, ...)."""

    kind: Literal["mask"] = "mask"
    of: str | None = None
    """The image or volume field whose geometry it follows; absent: the first one."""
    values: dict[int, int] | None = None
    """Maps stored values to classes, as {0: 0, 255: 1}; a value not listed is an error."""
    distance: Literal["none", "unsigned", "signed"] = "none"
    """Adds a field NAME_distance: each pixel's distance to the boundary (negative inside if signed)."""
    distance_clip: PositiveFloat | None = None
    """Largest distance kept, in pixels or mm (volumes)."""


class SignalField(NormaliseSection):
    """A waveform: wav, flac, ogg, npy, csv. Stored as (C, T)."""

    kind: Literal["signal"] = "signal"
    rate: PositiveInt | None = None
    """Samples a second after resampling; absent: each file keeps its own, so set it where they differ."""
    source_rate: PositiveFloat | None = None
    """Samples a second of files that do not say (npy, csv)."""
    channels: Channels = "refuse"
    """Several channels: refuse, take the first, average, or keep."""
    band: tuple[float, float] | None = None
    """Lowest and highest frequency kept, in Hz (Butterworth, zero phase)."""
    band_order: PositiveInt = 4
    """Order of the band-pass."""
    length: PositiveInt | None = None
    """Samples after `split` and `fit`; absent: lengths stay as they are (ragged)."""
    split: Literal["none", "windows", "cycles"] = "none"
    """One sample a file, a row of windows of `length`, or one sample a cardiac cycle."""
    hop: PositiveInt | None = None
    """Step between windows in samples; absent: `length`."""
    remainder: Literal["drop", "pad"] = "drop"
    """What becomes of the last, short window."""
    fit: Literal["trim_pad", "resample"] = "trim_pad"
    """How a file or a cycle reaches `length`: cut or zero-pad its end, or stretch it."""
    cycle_column: str | None = None
    """Manifest column with the cycles: a .tsv of start, end, state (1 = S1), or start times in s."""
    cycle_range_s: tuple[PositiveFloat, PositiveFloat] = (0.4, 1.5)
    """Shortest and longest cycle looked for when there is no annotation."""
    offset_column: str | None = None
    """Manifest column with the segment's start in seconds (NeMo: offset)."""
    duration_column: str | None = None
    """Manifest column with the segment's length in seconds (NeMo: duration)."""


class SequenceField(FieldSection):
    """A ragged series: list columns of a Parquet, csv or npy. Stored as (T, C)."""

    kind: Literal["sequence"] = "sequence"
    columns: list[str] | None = None
    """List columns, or columns of the csv, that become the channels, in this order."""
    channels: list[NonNegativeInt] | None = None
    """Channels kept, by position."""
    scale: float | list[float] = 1.0
    """Factor, one number or one a channel, applied before `shift`."""
    shift: float | list[float] = 0.0
    """Added after `scale`, one number or one a channel."""


class ArrayField(FieldSection):
    """Any array from npy or npz, stored as it is."""

    kind: Literal["array"] = "array"
    member: str | None = None
    """Name inside an npz; absent: the only one."""


class LabelField(FieldSection):
    """A class: an integer, or a name that becomes its position in the class list."""

    kind: Literal["label"] = "label"
    classes: list[str] | None = None
    """Class names in order; absent: collected from the manifest, sorted; later ones are appended."""


class ScalarField(FieldSection):
    """A number, stored as float32."""

    kind: Literal["scalar"] = "scalar"


class TextField(FieldSection):
    """A string, stored as UTF-8 bytes."""

    kind: Literal["text"] = "text"


class TransformField(FieldSection):
    """A field that a transform returns; only its storage is set here."""

    kind: Literal["transform"] = "transform"


class AutoField(FieldSection):
    """A field whose kind is guessed from its column, with any setting that the guessed kind has."""

    model_config = ConfigDict(extra="allow")
    kind: Literal["auto"] = "auto"


class NoField(FieldSection):
    """A field that is guessed otherwise, and left out."""

    model_config = ConfigDict(extra="allow")
    kind: Literal["none"] = "none"


class CustomField(FieldSection):
    """A kind that another package registered under the entry point group `flatout.kinds`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["custom"] = "custom"
    name: str
    """The registered kind."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Handed to the registered kind as they are."""


AnyField = Annotated[
    VolumeField
    | ImageField
    | MaskField
    | SignalField
    | SequenceField
    | ArrayField
    | LabelField
    | ScalarField
    | TextField
    | TransformField
    | CustomField
    | AutoField
    | NoField,
    Field(discriminator="kind"),
]

UNSETTLED = ("auto", "none")
"""Kinds that a config may give and no sample has: the manifest's columns settle them."""


def _with_kind(value: Any) -> Any:
    """A field as it may be written: null leaves it out, settings without a kind take the guessed one."""
    if value is None:
        return {"kind": "none"}
    return {"kind": "auto", **value} if isinstance(value, Mapping) and "kind" not in value else value


GivenField = Annotated[AnyField, BeforeValidator(_with_kind, json_schema_input_type=AnyField | None)]
"""A field as a config gives it."""
