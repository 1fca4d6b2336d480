"""The `array` kind: an array of an npy or npz, stored as it is; and the cast that every kind ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import ConfigError, SampleError
from flatout.types import Array, Context, Decoded, Outputs, Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, ArrayField

LARGEST_ITEM = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Bytes of the widest dtype of each kind that a store and torch both know."""


def make_steps(name: str, field: ArrayField, fields: Mapping[str, AnyField]) -> Steps:
    """Steps that give the array of the file, or of one member of it.

    Raises:
        ConfigError: `dtype` is no numeric dtype.
    """
    return _ArraySteps(name, field)


class _ArraySteps:
    def __init__(self, name: str, field: ArrayField) -> None:
        self._name = name
        self._member = field.member
        self._dtype = plan_dtype(name, field.dtype)

    def __call__(self, decoded: Decoded, context: Context) -> Outputs:
        return {self._name: cast(select_member(decoded, self._member), self._dtype)}


def select_member(decoded: Decoded, member: str | None) -> Array:
    """The array of a file; of one with several named arrays (npz) the one called `member`.

    Raises:
        SampleError: there is no such member, or several and none was named.
    """
    members = decoded.info.get("members")
    if members is None:
        if member is not None:
            raise SampleError("decode", f"the file holds one array without a name, wanted '{member}'")
        return decoded.array
    if member is None and len(members) == 1:
        return decoded.array
    if member not in members:
        got = "no member is chosen" if member is None else f"there is no '{member}'"
        raise SampleError("decode", f"{got} among {', '.join(sorted(members))}; set the field's 'member'")
    array: Array = members[member]()
    return array


def plan_dtype(name: str, dtype: str | None) -> np.dtype[Any] | None:
    """The dtype a field asks for; None when it asks for none.

    Raises:
        ConfigError: NumPy does not know it, or a store cannot hold it.
    """
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise ConfigError(f"field '{name}': '{dtype}' is no NumPy dtype; write float32, int16, ...") from error
    if not is_storable(found):
        raise ConfigError(f"field '{name}': dtype {found} cannot be stored; numbers of at most 8 bytes only")
    return found.newbyteorder("=")


def is_storable(dtype: np.dtype[Any]) -> bool:
    """Whether a store holds this dtype: numbers, neither text nor objects nor extended precision."""
    return 0 < dtype.itemsize <= LARGEST_ITEM.get(dtype.kind, 0)


def cast(array: Array, dtype: np.dtype[Any] | None, is_computed: bool = False) -> Array:
    """The array as `dtype` (absent: its own), in native byte order and C order.

    Args:
        is_computed: the values were interpolated or scaled on purpose, so that integers are rounded to.

    Raises:
        SampleError: the values are no numbers, or are not what `dtype` holds.
    """
    wanted = dtype if dtype is not None else array.dtype.newbyteorder("=")
    if array.dtype.kind not in LARGEST_ITEM or not is_storable(wanted):
        raise SampleError("check", f"an array of dtype {array.dtype} cannot be stored; numbers wanted")
    if wanted == array.dtype:
        return np.asarray(array, order="C")
    if wanted.kind in "iub" and array.size:
        array = _whole_within(array, wanted, is_computed)
    elif array.dtype.kind == "c" and wanted.kind != "c":
        raise SampleError("check", f"complex values do not fit {wanted}; store them as complex64")
    with np.errstate(over="ignore"):  # becomes an infinity, which the finite check names
        return array.astype(wanted, order="C")


def refuse_fractions(array: Array, dtype: np.dtype[Any]) -> None:
    """Computed values may be rounded; stored fractions may not be lost. NaN and infinities pass.

    Raises:
        SampleError: a stored value is no whole number.
    """
    if array.dtype.kind != "f":
        return
    with np.errstate(invalid="ignore"):  # infinity minus itself
        off = np.asarray(np.rint(array))  # of one number it gives no array
        np.subtract(array, off, out=off)
        is_fraction = np.abs(off, out=off) > 0
    if is_fraction.any():
        raise SampleError(
            "check",
            f"the stored values have fractions ({array[is_fraction].flat[0]:g} is one), dtype {dtype} holds "
            "none; leave dtype out, and for fewer bytes set encoding: int16 or float16 in its place",
        )


def _whole_within(array: Array, wanted: np.dtype[Any], is_computed: bool) -> Array:
    """The values as whole numbers, all of which `wanted` holds."""
    if array.dtype.kind == "c":
        raise SampleError("check", f"complex values do not fit {wanted}; store them as complex64")
    if array.dtype.kind == "f":
        if not is_computed:
            refuse_fractions(array, wanted)
        array = np.rint(array)
    low, high = array.min(), array.max()
    least, most = (0, 1) if wanted.kind == "b" else (np.iinfo(wanted).min, np.iinfo(wanted).max)
    # int(...) compares exactly; as floats, 2**63 would pass for the largest int64.
    if not (np.isfinite(low) and np.isfinite(high)) or int(low) < least or int(high) > most:
        raise SampleError(
            "check", f"values of {low} to {high} do not fit {wanted} ({least} to {most}); choose another"
        )
    return array
