"""One ordered merge: a later layer wins, key by key, at any depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.config.layer import Layer, Path


def merge(layers: Sequence[Layer]) -> dict[Any, Any]:
    """All settings of `layers`, from the weakest to the strongest; the layers stay as they are."""
    merged: dict[Any, Any] = {}
    for layer in layers:
        _merge_into(merged, layer.values)
    return merged


def winner(layers: Sequence[Layer], path: Path) -> Layer | None:
    """The strongest layer that gives `path`, or None where it is a default."""
    return next((layer for layer in reversed(layers) if layer.holds(path)), None)


def _merge_into(target: dict[Any, Any], values: Mapping[Any, Any]) -> None:
    for key, value in values.items():
        if not isinstance(value, Mapping):
            target[key] = value
            continue
        if not isinstance(target.get(key), dict):
            target[key] = {}
        _merge_into(target[key], value)
