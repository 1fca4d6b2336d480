"""Section: what every part of the config shares: frozen, no unknown keys, docs under the fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """One immutable group of settings. The string under a field is its documentation."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        ser_json_inf_nan="strings",  # JSON has no infinity, and null would not load again
    )


class TransformSection(Section):
    """What every transform of an augmentation has."""

    p: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability that a sample is changed."""
