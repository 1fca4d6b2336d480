"""Which field of a store is augmented, what its views are stored as, and which fields are kept beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from flatout.config.fields import Encoding, FieldSection, LabelField, SignalField, TransformField
from flatout.errors import ConfigError
from flatout.store import StoreReader
from flatout.types import FieldSpec


def find_signal(store: StoreReader, name: str | None = None) -> str:
    """The field that views are made of: the one named, or the only one that can be a signal.

    Raises:
        ConfigError: there is none of that name, none at all, or several.
    """
    if name is not None:
        if name not in store.fields:
            raise ConfigError(f"{store.folder} has no field '{name}'; it has: {', '.join(store.fields)}")
        return name
    specs = store.fields.values()
    signals = [spec.name for spec in specs if spec.kind == "signal"]
    floats = [spec.name for spec in specs if np.dtype(spec.dtype).kind == "f" and len(spec.shape) == 2]
    found = signals or floats
    if len(found) != 1:
        problem = f"several: {', '.join(found)}" if found else f"none among: {', '.join(store.fields)}"
        raise ConfigError(f"{store.folder}: which field is the signal? There are {problem}. Name it (--field)")
    return found[0]


def find_drawn(store: StoreReader, name: str | None = None) -> str:
    """The field that a preview shows: the one named, the signal, or the first image or volume.

    Raises:
        ConfigError: there is no such field, or none that can be drawn.
    """
    pictures = [spec.name for spec in store.fields.values() if spec.kind in ("image", "volume")]
    large = [spec.name for spec in store.fields.values() if len(spec.shape) in (2, 3, 4)]
    if name is None and (pictures or len(large) == 1):
        return next(iter([*pictures, *large]))
    return find_signal(store, name)


def known_rate(store: StoreReader, name: str) -> int | None:
    """Samples a second of a field, where the store's settings say it; what its files had is not kept."""
    fields = store.meta.settings.get("fields") or {}
    rate = (fields.get(name) or {}).get("rate")
    return int(rate) if rate else None


def kept_fields(store: StoreReader, names: Sequence[str] | None, beside: Iterable[str]) -> list[str]:
    """Fields that go into the new store as they are: those named, else every label and number.

    Raises:
        ConfigError: there is no such field, or it has the name of a view.
    """
    if names is None:
        names = [name for name, spec in store.fields.items() if spec.shape == ()]
    if unknown := [name for name in names if name not in store.fields]:
        raise ConfigError(f"{store.folder} has no field '{unknown[0]}'; it has: {', '.join(store.fields)}")
    if taken := [name for name in names if name in set(beside)]:
        raise ConfigError(f"field '{taken[0]}' of {store.folder} has the name of a view; leave it out")
    return list(names)


def view_sections(names: Iterable[str], spec: FieldSpec, encoding: Encoding) -> dict[str, FieldSection]:
    """How views and their parts are stored: `encoding` is float16 where memory counts more than digits."""
    ragged, is_signal = True if spec.is_ragged else None, len(spec.shape) == 2
    return {
        name: (SignalField if is_signal and name.startswith("view") else TransformField)(
            encoding=encoding, ragged=ragged
        )
        for name in names
    }


def section_of(spec: FieldSpec) -> FieldSection:
    """The settings that store a field again as it stands."""
    if spec.kind == "label":
        return LabelField(dtype=spec.dtype, classes=list(spec.classes or ()) or None)
    return TransformField(
        dtype=spec.dtype,
        encoding=spec.encoding,
        range=spec.range,
        compression=spec.compression,
        allow_nonfinite=True,  # what stands in the store has been let in
        ragged=spec.is_ragged,
    )
