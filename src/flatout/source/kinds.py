"""Which module plans the steps of which kind; loaded when a config first uses the kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flatout.errors import ConfigError
from flatout.source.registry import entry_points, load_object, registered
from flatout.types import Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, CustomField

_STEPS = {
    kind: f"flatout.source.{kind}:make_steps"
    for kind in ("volume", "image", "mask", "signal", "sequence", "array")
}

VERSIONS = {
    "volume": 2,
    "image": 1,
    "mask": 2,
    "signal": 2,
    "sequence": 1,
    "array": 1,
    "label": 1,
    "scalar": 1,
    "text": 1,
}
"""Raised when a kind's result changes for the same settings: stores made before count as out of date."""

LIBRARIES = {
    "volume": ("pydicom", "scipy"),
    "image": ("pillow", "pydicom"),
    "mask": ("pillow", "pydicom", "scipy"),
    "signal": ("soundfile", "soxr", "scipy"),
}
"""Distributions whose version can change a kind's values; part of the fingerprint."""


def plan_steps(name: str, field: AnyField, fields: Mapping[str, AnyField]) -> Steps:
    """The planned steps of a built-in kind."""
    target = _STEPS.get(field.kind)
    if target is None:
        raise ConfigError(f"field '{name}': kind '{field.kind}' has no decoder; known: {', '.join(_STEPS)}")
    return load_object(target)(name, field, fields)  # type: ignore[no-any-return]


def added_code(fields: Mapping[str, AnyField]) -> dict[str, str]:
    """What other packages bring for these fields: "decoder volume.mha" or "kind heart" -> its target."""
    custom = {field.name for field in fields.values() if field.kind == "custom"}
    read_as = custom | {field.kind for field in fields.values()}  # a mask is read as a field beside it
    found = {f"decoder {kind}{s}": target for (kind, s), target in registered().items() if kind in read_as}
    if custom:
        entries = entry_points(group="flatout.kinds")
        found |= {f"kind {entry.name}": entry.value for entry in entries if entry.name in custom}
    return found


def custom_steps(name: str, field: CustomField) -> Steps:
    """The steps of a kind that another package registered: `make_steps(name, params) -> Steps`."""
    found: dict[str, Any] = {entry.name: entry for entry in entry_points(group="flatout.kinds")}
    if field.name not in found:
        raise ConfigError(
            f"field '{name}': no installed package registers the kind '{field.name}' "
            f"under 'flatout.kinds' (found: {', '.join(sorted(found)) or 'none'})"
        )
    return found[field.name].load()(name, field.params)  # type: ignore[no-any-return]
