"""Where the samples come from and how they are divided: manifest, fields, transform, splits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from flatout.config.fields import UNSETTLED, GivenField
from flatout.config.section import Section

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LabelSet = Literal["physionet2016", "circor_murmur"]


class SplitSection(Section):
    """How samples are divided into train, val and test; always a function of the key alone."""

    column: str | None = None
    """Manifest column that names each row's split; wins over ratios."""
    empty: Literal["refuse", "divide"] = "refuse"
    """Rows whose split column is empty: an error, or divided as their group or key says, as in one found."""
    ratios: dict[str, Weight] = Field(default_factory=lambda: {"train": 0.8, "val": 0.1, "test": 0.1})
    """Weight of each split; its share is that divided by the sum of all."""
    stratify: str | None = None
    """Manifest column whose classes keep their shares in every split."""
    group: str | None = None
    """Manifest column (patient, speaker) whose rows never stand in two splits."""
    guess: bool = True
    """Take a split column and a group that the manifest suggests where none is set; a store does it once."""
    seed: int = 0
    """Another seed, another division."""
    always_train: list[str] = Field(default_factory=list)
    """Keys or groups that are train, whatever their hash says; a store notes what it moved to an empty one."""


class SourceSettings(Section):
    """Settings that describe the raw data."""

    manifest: str | dict[str, str] | None = None
    """CSV, TSV, Parquet, JSON lines, or a folder; or one of these per split, as {train: ..., val: ...}."""
    label_set: LabelSet | None = None
    """Public data set whose own files and labels the folder `manifest` holds (heart_sound)."""
    tarred_audio_filepaths: str | list[str] | None = None
    """Tar files that hold the audio the manifest names (NeMo): a path, a range `audio_{0..15}.tar`, a list."""
    base_path: str | None = None
    """Folder that relative paths start from; absent: the manifest's folder."""
    key_column: str | None = None
    """Column that names each sample; absent: an id column or the path, whichever is unique."""
    key_rule: str | None = None
    """Where keys come from without a `key_column`; a store keeps that of its first run. As `column:NAME`."""
    fields: dict[str, GivenField] = Field(default_factory=dict)
    """The parts of a sample by name; without a kind: as guessed; null: left out."""
    guess_fields: bool | None = None
    """Guess the fields that are not named, and say so. Absent: unless `fields` gives each with its kind."""
    transform: str | None = None
    """`package.module:function` that turns a row (dict) into a dict of arrays, instead of decoders."""
    transform_params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the transform; part of its fingerprint."""
    transform_version: str | None = None
    """Replaces the fingerprint of the transform's code: change it when the result changes."""
    splits: SplitSection = Field(default_factory=SplitSection)
    """How samples are divided."""
    allow_outside_base: bool = False
    """Accept paths that leave `base_path`."""

    @property
    def names_all_fields(self) -> bool:
        """Whether `fields` alone says what a sample is: nothing is guessed, nothing left out."""
        kinds = [section.kind for section in self.fields.values()]
        return bool(kinds) and not self.guess_fields and not any(kind in UNSETTLED for kind in kinds)

    @property
    def guesses_fields(self) -> bool:
        """Whether the columns that `fields` does not name may become fields, too."""
        if self.transform is not None:
            return False
        return not self.names_all_fields if self.guess_fields is None else self.guess_fields
