"""NIfTI pairs: a manifest names one half, .hdr or .img, and the decoder reads both."""

from __future__ import annotations

HALVES = (".hdr", ".img", ".hdr.gz", ".img.gz")
"""Lower-case suffixes of either half."""
_LAST = frozenset("rgzRGZ")
"""What they end in; most names of files do not."""


def is_half(name: str) -> bool:
    """Whether a file of this name is one of two that belong together."""
    return name[-1:] in _LAST and name.lower().endswith(HALVES)


def names_of(name: str, half: str) -> list[str]:
    """Names that one half (`hdr` or `img`) of the pair that `name` belongs to may have, the likeliest first."""
    stem = (name[:-3] if name.lower().endswith(".gz") else name)[:-4]
    return [f"{stem}.{suffix}{tail}" for suffix in (half, half.upper()) for tail in ("", ".gz")]
