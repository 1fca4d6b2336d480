"""Encodings: exact casts, the error bound of quantisation, and what does not fit."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flatout.errors import SampleError
from flatout.store.encode import (
    QUANTISED,
    encode,
    from_bfloat16_bits,
    largest_error,
    restore,
    to_bfloat16_bits,
)
from flatout.types import FieldSpec

QUANTISATIONS = sorted(QUANTISED)


def spec_of(encoding: str, dtype: str = "float32", **more: Any) -> FieldSpec:
    return FieldSpec("x", "array", dtype, (None,), encoding=encoding, **more)


def floats(width: int = 32, limit: float | None = None) -> Any:
    bound = None if limit is None else float(np.array(limit, f"f{width // 8}"))
    elements = st.floats(
        width=width, allow_nan=False, allow_infinity=False, max_value=bound, min_value=bound and -bound
    )
    return hnp.arrays(f"f{width // 8}", st.integers(0, 20), elements=elements)


def there_and_back(spec: FieldSpec, array: Any) -> tuple[Any, Any, Any]:
    stored, scale = encode(spec, array)
    assert stored.dtype == spec.stored_dtype
    assert stored.shape == array.shape
    back = restore(spec, stored, scale)
    assert back.dtype == np.dtype(spec.dtype)
    return stored, scale, back


@given(array=floats())
def test_none_is_the_array_itself(array: Any) -> None:
    stored, scale, back = there_and_back(spec_of("none"), array)
    assert stored is array
    assert back is array
    assert scale is None


@given(array=floats(limit=65504))
def test_float16_rounds_to_the_nearest(array: Any) -> None:
    spec = spec_of("float16")
    stored, scale, back = there_and_back(spec, array)
    errors = np.abs(back.astype(np.float64) - array)
    assert (errors <= np.maximum(np.abs(array.astype(np.float64)) * 2.0**-11, 2.0**-25)).all()
    assert largest_error(spec, array, stored, scale) == errors.max(initial=0)


@pytest.mark.parametrize("beside", [1.0, np.inf, np.nan])
def test_float16_never_makes_a_number_infinite(beside: float) -> None:
    array = np.array([beside, -70000.0], np.float32)
    with pytest.raises(SampleError, match="70000 does not fit float16") as caught:
        encode(spec_of("float16"), array)
    assert caught.value.stage == "encode"


def test_float16_keeps_infinities_and_what_rounds_down_to_its_largest() -> None:
    array = np.array([np.inf, -np.inf, 65519.0, np.nan], np.float32)
    _, _, back = there_and_back(spec_of("float16"), array)
    np.testing.assert_array_equal(back, [np.inf, -np.inf, 65504.0, np.nan])


def nearest_bfloat16(value: float) -> float:
    """The bfloat16 nearest to a float32, ties to even, by exact arithmetic."""
    if value == 0 or not math.isfinite(value):
        return value
    exponent = max(math.frexp(value)[1] - 8, -133)
    units = Fraction(value) / Fraction(2) ** exponent
    return float(round(units) * Fraction(2) ** exponent)


@given(bits=st.integers(0, 2**32 - 1))
@example(bits=0x3F808000)  # a tie to even, downwards
@example(bits=0x3F818000)  # a tie to even, upwards
@example(bits=0x00000001)  # the smallest subnormal
@example(bits=0x7FFFFFFF)
@example(bits=0xFFFFFFFF)
def test_bfloat16_against_exact_arithmetic(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    found = from_bfloat16_bits(to_bfloat16_bits(value))[0]
    if np.isnan(value[0]):
        assert np.isnan(found)
        return
    expected = nearest_bfloat16(float(value[0]))
    assert found == (expected if abs(expected) < 2.0**128 else math.copysign(math.inf, expected))
    assert np.signbit(found) == np.signbit(value[0])


def test_bfloat16_bits_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).integers(0, 2**32, 100_000, np.uint64).astype(np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16_bits(values), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bfloat16_refuses_what_would_become_infinite(dtype: str) -> None:
    spec = spec_of("bfloat16", dtype)
    with pytest.raises(SampleError, match="does not fit bfloat16"):
        encode(spec, np.array([1.0, np.finfo(np.float32).max], dtype))
    _, _, back = there_and_back(spec, np.array([1.0, -np.inf, np.nan], dtype))
    np.testing.assert_array_equal(back, [1.0, -np.inf, np.nan])


@pytest.mark.parametrize("encoding", QUANTISATIONS)
@given(array=floats(limit=2.0**126))
def test_quantisation_errs_by_half_a_step_at_most(encoding: str, array: Any) -> None:
    spec = spec_of(encoding)
    stored, scale, back = there_and_back(spec, array)
    assert scale is not None
    step, _ = scale
    errors = np.abs(back.astype(np.float64) - array)
    # Half a step, and what float32 cannot tell apart: in the values, and in the step itself.
    slack = 4 * float(np.spacing(np.float32(np.abs(array).max(initial=0.0))))
    slack += float(np.ptp(QUANTISED[encoding])) * float(np.spacing(np.float32(step)))
    assert (errors <= step / 2 + slack).all()
    assert largest_error(spec, array, stored, scale) == errors.max(initial=0)


@pytest.mark.parametrize("encoding", QUANTISATIONS)
def test_quantisation_spans_the_whole_range_of_codes(encoding: str) -> None:
    low, high = QUANTISED[encoding]
    stored, _, back = there_and_back(spec_of(encoding), np.linspace(-1, 3, 101, dtype=np.float32))
    assert (stored.min(), stored.max()) == (low, high)
    assert (back[0], back[-1]) == pytest.approx((-1, 3), abs=1e-4)


@pytest.mark.parametrize("encoding", QUANTISATIONS)
def test_a_fixed_range_gives_every_sample_the_same_scale(encoding: str) -> None:
    spec = spec_of(encoding, range=(-1.0, 1.0))
    scales = {encode(spec, np.array(values, np.float32))[1] for values in ([0.1], [-1.0, 1.0], [])}
    assert len(scales) == 1
    with pytest.raises(SampleError, match=r"-1\.5\.\.0\.5 leave its range -1\.\.1"):
        encode(spec, np.array([-1.5, 0.5], np.float32))


@pytest.mark.parametrize("encoding", QUANTISATIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantisation_refuses_what_is_not_finite(encoding: str, bad: float) -> None:
    with pytest.raises(SampleError, match="cannot hold NaN or infinity"):
        encode(spec_of(encoding), np.array([0.0, bad], np.float32))


@pytest.mark.parametrize("encoding", QUANTISATIONS)
@pytest.mark.parametrize("value", [1e300, 3.4e38])
def test_quantisation_refuses_what_float32_could_not_restore(encoding: str, value: float) -> None:
    with pytest.raises(SampleError, match="too wide for float32"):
        encode(spec_of(encoding, "float64"), np.array([0.0, value]))


@pytest.mark.parametrize("encoding", QUANTISATIONS)
def test_a_constant_is_kept_exactly(encoding: str) -> None:
    for value in (3.25, 0.001, 1e-4, 0.3, -7.7, 3e8, 0.0):
        _, _, back = there_and_back(spec_of(encoding), np.full(5, value, np.float32))
        np.testing.assert_array_equal(back, np.full(5, value, np.float32))


def test_a_quantised_field_without_its_scale_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no scale"):
        restore(spec_of("uint8"), np.zeros(3, np.uint8), None)
