"""The `mask` kind: a label map that follows the geometry of its image or volume, without interpolating.

Every label of the result stands in the file (or is the class it maps to), or is the 0 of padding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flatout.errors import ConfigError, SampleError
from flatout.source.array import plan_dtype
from flatout.source.distance import distance_map
from flatout.source.geometry import (
    Placed,
    check_orientation,
    crop,
    is_same_place,
    pad,
    reorient,
    resize,
    respace,
    spacing_of,
)
from flatout.source.image import channels_first
from flatout.source.resample import in_c_order, memory_order
from flatout.source.volume import spread_axes
from flatout.types import Array, Context, Decoded, Limits, Outputs, Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, ImageField, MaskField, VolumeField

_MAX_TABLE = 1 << 16
_BACKGROUND = 0


def decode_kind(field: MaskField, fields: Mapping[str, AnyField]) -> Literal["volume", "image"]:
    """The kind whose decoders read this mask's files: that of the field it belongs to.

    Raises:
        ConfigError: there is no such field.
    """
    return _owner(field, fields)[1].kind


def make_steps(name: str, field: MaskField, fields: Mapping[str, AnyField]) -> Steps:
    """Steps that give {name: (1, ...)} of uint8 (or `field.dtype`), and `<name>_distance` where asked for.

    Raises:
        ConfigError: the field it belongs to is missing, or dtype or values are impossible.
    """
    return _MaskSteps(name, field, *_owner(field, fields))


def owner_name(field: MaskField, fields: Mapping[str, AnyField]) -> str:
    """The image or volume that a mask belongs to: the first, unless it says.

    Raises:
        ConfigError: there is no such field.
    """
    return _owner(field, fields)[0]


def _owner(field: MaskField, fields: Mapping[str, AnyField]) -> tuple[str, VolumeField | ImageField]:
    found = {key: other for key, other in fields.items() if other.kind == "volume" or other.kind == "image"}
    name = field.of or next(iter(found), None)
    if name is None or name not in found:
        wanted = f"of: '{field.of}' names none of them" if field.of else "there is none"
        raise ConfigError(f"a mask needs an image or volume field; {wanted} (found: {', '.join(found) or '-'})")
    return name, found[name]


class _MaskSteps:
    def __init__(self, name: str, field: MaskField, of: str, owner: VolumeField | ImageField) -> None:
        self._name, self._of, self._field, self._owner = name, of, field, owner
        self._dtype = plan_dtype(name, field.dtype) or np.dtype(np.uint8)
        if self._dtype.kind not in "iu":
            raise ConfigError(f"field '{name}': labels are whole numbers, dtype {self._dtype} is none for them")
        self._values = _checked_values(name, field.values, self._dtype)
        self._place = _plan_place(owner)

    def __call__(self, decoded: Decoded, context: Context) -> Outputs:
        labels = self._labels(decoded)
        affine = self._matched(labels, decoded.affine, context)
        labels = (
            map_labels(labels, self._values, self._dtype) if self._values else cast_labels(labels, self._dtype)
        )
        placed, affine = self._place(labels, affine, context.limits)
        mask = in_c_order(placed, self._dtype)
        return {self._name: mask, **self._distance(mask, affine)}

    def _labels(self, decoded: Decoded) -> Array:
        """The stored labels as one channel, (1, ...)."""
        if self._owner.kind == "volume":
            array = np.moveaxis(spread_axes(decoded.array), 3, 0)
        else:
            # The colours of a palette only show the labels, which are its indices.
            array = channels_first(decoded.info.get("indices", decoded.array))
        if not all(np.array_equal(array[0], plane) for plane in array[1:]):
            raise SampleError(
                "transform", f"the mask's {len(array)} channels differ; one channel of labels is wanted"
            )
        return array[:1]

    def _matched(self, labels: Array, affine: Array | None, context: Context) -> Array | None:
        """The affine of the image or volume, which the mask shares."""
        if self._of not in context.geometry:
            raise SampleError("transform", f"the mask's '{self._of}' is missing in this sample")
        wanted = context.geometry[self._of]
        if labels.shape[1:] != wanted.shape:
            raise SampleError(
                "transform", f"the mask has shape {labels.shape[1:]}, its '{self._of}' has {wanted.shape}"
            )
        if affine is None or wanted.affine is None or is_same_place(wanted.affine, affine, wanted.shape):
            return wanted.affine
        raise SampleError(
            "transform",
            f"the mask stands elsewhere: its affine is {affine[:3].round(4).tolist()}, "
            f"that of '{self._of}' {wanted.affine[:3].round(4).tolist()}",
        )

    def _distance(self, mask: Array, affine: Array | None) -> dict[str, Array]:
        if self._field.distance == "none":
            return {}
        spacing = None if affine is None else spacing_of(affine).tolist()
        signed = self._field.distance == "signed"
        return {
            f"{self._name}_distance": distance_map(mask[0], spacing, signed, self._field.distance_clip)[None]
        }


def _plan_place(owner: VolumeField | ImageField) -> Callable[[Array, Array | None, Limits], Placed]:
    """The geometry of the owner, by nearest neighbour."""
    orientation = getattr(owner, "orientation", None)
    code = check_orientation(orientation) if orientation else None
    spacing = getattr(owner, "spacing", None)

    def place(array: Array, affine: Array | None, limits: Limits) -> Placed:
        if code:
            array, affine = reorient(array, affine, code)
        if spacing and affine is not None:
            array, affine = respace(array, affine, spacing, limits)
        if not owner.size:
            return array, affine
        if owner.fit == "resize":
            return resize(array, affine, owner.size, limits)
        return pad(*crop(array, affine, owner.size), owner.size, _BACKGROUND, limits)

    return place


def _checked_values(
    name: str, values: Mapping[int, int] | None, dtype: np.dtype[Any]
) -> Mapping[int, int] | None:
    if values is None:
        return None
    bounds = np.iinfo(dtype)
    if not values:
        raise ConfigError(f"field '{name}': values is empty, so that every label would be refused")
    beyond = sorted(value for value in values.values() if not bounds.min <= value <= bounds.max)
    if beyond:
        raise ConfigError(f"field '{name}': values maps to {beyond[0]}, which {dtype} does not hold; set dtype")
    return values


def cast_labels(labels: Array, dtype: np.dtype[Any]) -> Array:
    """Labels of any dtype -> the same as `dtype`.

    Raises:
        SampleError: a label is no whole number, or does not fit.
    """
    if labels.dtype == dtype:
        return labels
    if labels.dtype.kind == "f":
        is_whole = labels == np.rint(labels)
        if not is_whole.all():
            value = labels[~is_whole].flat[0]
            raise SampleError("transform", f"the mask has the value {value:g}; labels are whole numbers")
    bounds = np.iinfo(dtype)
    for value in (labels.min(), labels.max()):
        if not bounds.min <= value <= bounds.max:
            raise SampleError(
                "transform",
                f"the mask has the value {value:g}, which {dtype} does not hold; set dtype or values",
            )
    return labels.astype(dtype)


def map_labels(labels: Array, values: Mapping[int, int], dtype: np.dtype[Any]) -> Array:
    """Every label replaced by its class, as `dtype`.

    Raises:
        SampleError: a label is not listed.
    """
    order = memory_order(labels)
    stored = labels.transpose(order)
    if stored.dtype == dtype == np.uint8:
        mapped, unknown = _map_bytes(stored, values)
    else:
        mapped, unknown = _map_numbers(stored, values, dtype)
    if len(unknown):
        raise SampleError(
            "transform", f"the mask has the value {unknown[0]:g}, which values does not list ({dict(values)})"
        )
    return mapped.transpose(np.argsort(order))


def _map_bytes(labels: Array, values: Mapping[int, int]) -> tuple[Array, Array]:
    """uint8 to uint8: the classes, and the labels that have none. 256 x 256 x 100: 10 ms; searched, 75."""
    listed = {key: value for key, value in values.items() if 0 <= key <= 255}
    table = bytes(listed.get(key, 0) for key in range(256))
    data = labels.tobytes()
    mapped = np.frombuffer(data.translate(table), dtype=np.uint8).reshape(labels.shape)
    return mapped, np.frombuffer(data.translate(None, bytes(listed)), dtype=np.uint8)


def _map_numbers(labels: Array, values: Mapping[int, int], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Any dtypes: the classes, and the labels that have none."""
    keys = np.array(sorted(values))
    classes = np.array([values[key] for key in keys.tolist()], dtype=dtype)
    at = np.minimum(np.searchsorted(keys, labels), len(keys) - 1)
    return classes[at], labels[keys[at] != labels]
