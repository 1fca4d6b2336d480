"""The jobs that are measured: the same files in, the same arrays out, for flatout and for every peer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flatout.bench import ordinary
from flatout.types import Array

Files = Literal["nifti", "wav"]


@dataclass(frozen=True)
class Case:
    """One job: flatout's settings for it, and the function that an ordinary user would write."""

    name: str
    files: Files
    field: Mapping[str, Any]
    """Settings of the only field, `x`."""
    load: Callable[[str], Array]
    """Path in, the same array out."""
    is_exact: bool
    """Whether both give the same bits, or the same up to rounding."""
    is_ragged: bool = False


CASES = {
    case.name: case
    for case in (
        Case(
            "nifti",
            "nifti",
            {"kind": "volume", "orientation": None, "ragged": True},
            ordinary.load_nifti,
            is_exact=True,
            is_ragged=True,
        ),
        Case(
            "nifti_resampled",
            "nifti",
            {"kind": "volume", "spacing": list(ordinary.SPACING_MM), "size": list(ordinary.SIZE)},
            ordinary.load_nifti_resampled,
            is_exact=False,
        ),
        Case(
            "wav",
            "wav",
            {"kind": "signal", "rate": ordinary.RATE, "length": ordinary.LENGTH},
            ordinary.load_wav,
            is_exact=True,
        ),
    )
}
