"""Field specifications from the first samples, and the check that every later sample meets them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import ConfigError, PrepareError, SampleError
from flatout.source import TextBytes
from flatout.store.layout import STORABLE, check_field_name
from flatout.types import Array, FieldSpec, Shape

if TYPE_CHECKING:
    from flatout.config.fields import FieldSection

NUM_PROBED = 8
"""Rows looked at to settle shapes, dtypes and bytes a row."""

_ALWAYS_RAGGED = {"sequence", "text"}


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """Dtype and shape of one array, without its values."""

    dtype: str
    shape: tuple[int, ...]
    is_text: bool = False

    @classmethod
    def of(cls, array: Array) -> ArrayForm:
        return cls(array.dtype.str, array.shape, isinstance(array, TextBytes))


Forms = Sequence[Mapping[str, ArrayForm]]
"""The forms of the samples that one row gave."""


def specify(
    sections: Mapping[str, FieldSection], kinds: Mapping[str, str], probed: Sequence[Forms]
) -> tuple[FieldSpec, ...]:
    """One FieldSpec a field from the first good rows' samples.

    Raises:
        PrepareError: none of the first rows could be decoded.
        ConfigError: a field's values cannot be stored.
    """
    samples = [sample for row in probed for sample in row]
    if not samples:
        raise PrepareError("none of the first rows gave a sample")
    return tuple(_specify_field(name, sections, kinds, samples) for name in samples[0])


def _specify_field(
    name: str,
    sections: Mapping[str, FieldSection],
    kinds: Mapping[str, str],
    samples: Sequence[Mapping[str, ArrayForm]],
) -> FieldSpec:
    from flatout.config.fields import FieldSection

    check_field_name(name)
    section = sections.get(name, FieldSection())
    forms = [sample[name] for sample in samples if name in sample]
    kind = "text" if all(form.is_text for form in forms) else kinds.get(name, "array")
    try:
        dtype = np.dtype(section.dtype or np.result_type(*(np.dtype(form.dtype) for form in forms)))
    except TypeError as error:
        raise ConfigError(f"field '{name}': {error}") from error
    if dtype.kind not in STORABLE:
        raise ConfigError(f"field '{name}' has dtype {dtype}, which a store cannot hold; numbers only")
    if section.encoding != "none" and dtype.kind != "f":
        raise ConfigError(
            f"field '{name}': encoding {section.encoding} is for floating point, the field is {dtype}; "
            "leave the encoding out"
        )
    shape = _shape(name, kind, section.ragged, [form.shape for form in forms])
    return FieldSpec(
        name=name,
        kind=kind,
        dtype=dtype.name,
        shape=shape,
        encoding=section.encoding,
        compression=section.compression if shape else "none",
        range=section.range,
        classes=tuple(getattr(section, "classes", None) or ()) or None,
    )


def _shape(name: str, kind: str, ragged: bool | None, shapes: Sequence[tuple[int, ...]]) -> Shape:
    """The shape all samples share, or None for the axes that may vary."""
    first = shapes[0]
    if any(len(shape) != len(first) for shape in shapes):
        told = " and ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ConfigError(
            f"field '{name}': the first good rows (with a limit some beyond it, too) have shapes {told}; all "
            "samples must have as many axes. Leave some of these rows out, or make them alike in a transform"
        )
    if kind in _ALWAYS_RAGGED and ragged is None:
        ragged = True
    if ragged is None:
        ragged = any(shape != first for shape in shapes)
    if not ragged or not first:
        return first
    return _varying(kind, first)


def _varying(kind: str, shape: tuple[int, ...]) -> Shape:
    """Which axes vary follows from the kind, not from the few samples seen: a later one may vary more."""
    if kind == "sequence":
        return (None, *shape[1:])
    if kind == "signal":
        return (*shape[:-1], None)
    if kind in ("volume", "image", "mask", "distance"):
        return (shape[0], *(None for _ in shape[1:]))
    return tuple(None for _ in shape)


def check_array(spec: FieldSpec, array: Array, allow_nonfinite: bool) -> Array:
    """The array with the field's dtype and shape.

    Raises:
        SampleError: another shape or dtype, text for numbers, or NaN or infinities where they are not allowed.
    """
    if type(array) is TextBytes and spec.kind != "text":
        raise SampleError("check", f"field '{spec.name}' is text, wanted {spec.dtype}")
    wanted = _dtype(spec.dtype)
    if array.dtype != wanted:
        array = _cast(spec, array, wanted)
    if array.shape != spec.shape and not _fits(array.shape, spec.shape):
        can_vary = len(array.shape) == len(spec.shape) and not spec.is_ragged
        raise SampleError(
            "check",
            f"field '{spec.name}' has shape {array.shape}, wanted {_shape_text(spec.shape)}; "
            + ("set its size or length, or 'ragged: true'" if can_vary else "all samples must agree on that"),
        )
    if not allow_nonfinite and array.dtype.kind in "fc" and not is_finite(array):
        num_bad = int(array.size - np.isfinite(array).sum())
        raise SampleError(
            "check",
            f"field '{spec.name}' has {num_bad:,} NaN or infinite values; 'allow_nonfinite: true' keeps them",
        )
    return array


_dtype = lru_cache(maxsize=64)(np.dtype)
"""Looked up for every array of every sample."""


def is_finite(array: Array) -> bool:
    """Whether no value is NaN or infinite. Squares add up to a finite number only if none is: half the time."""
    if array.dtype.char in "fd" and array.flags.c_contiguous and math.isfinite(np.vdot(array, array)):
        return True
    return bool(np.isfinite(array).all())


def _fits(got: tuple[int, ...], wanted: Shape) -> bool:
    return len(got) == len(wanted) and all(want in (None, n) for n, want in zip(got, wanted, strict=True))


def _cast(spec: FieldSpec, array: Array, wanted: np.dtype[Any]) -> Array:
    """Integers become any integers that hold them; other kinds only what loses no more than precision."""
    are_integers = wanted.kind in "iu" and array.dtype.kind in "iu"
    if not are_integers and not np.can_cast(array.dtype, wanted, "same_kind" if wanted.kind == "f" else "safe"):
        raise SampleError("check", f"field '{spec.name}' is {array.dtype}, wanted {wanted}; set its dtype")
    with np.errstate(over="ignore", invalid="ignore"):
        found = array.astype(wanted)
        if are_integers:
            is_lost = found != array
        elif array.dtype.kind in "iu":  # only fractions may lose precision
            is_lost = found.astype(array.dtype) != array
        else:
            is_lost = np.isfinite(array) & ~np.isfinite(found)
    if is_lost.any():
        values = f"{array.min()}..{array.max()}"
        raise SampleError("check", f"field '{spec.name}': {values} do not fit {wanted}; set a wider dtype")
    return found


def _shape_text(shape: Shape) -> str:
    return (
        "(" + ", ".join("any" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
    )
