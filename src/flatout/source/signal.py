"""The `signal` kind: segment, channels, rate, band, scale, then windows or cycles, and a fixed length.

Signals are (C, T). A decoder that states a rate gives them so. A table (csv, list columns) is (T, C) and is
turned; of a two-dimensional npy the longer axis is time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flatout.errors import ConfigError, SampleError
from flatout.source import cycles, waveform
from flatout.source.array import cast, plan_dtype, refuse_fractions
from flatout.source.numeric import decode_csv
from flatout.source.value import is_missing
from flatout.types import Array, Context, Decoded, Limits, Outputs, Pieces, Steps

if TYPE_CHECKING:
    from flatout.config.fields import AnyField, SignalField


def make_steps(name: str, field: SignalField, fields: Mapping[str, AnyField]) -> Steps:
    """Steps that turn a decoded waveform into (C, T), or into Pieces of it for windows and cycles.

    Raises:
        ConfigError: settings that no signal can meet.
    """
    _check_settings(name, field)
    return _SignalSteps(name, field)


def _check_settings(name: str, field: SignalField) -> None:
    if field.band is not None:
        low, high = field.band
        if not 0 <= low < high:
            raise ConfigError(f"field '{name}': band {field.band} must rise from 0 Hz or more")
        if field.rate is not None and high >= field.rate / 2:
            raise ConfigError(
                f"field '{name}': the band reaches {high:g} Hz, but a rate of {field.rate} Hz only "
                f"{field.rate / 2:g} Hz; lower the band or raise the rate"
            )
    if field.split == "windows" and field.length is None:
        raise ConfigError(f"field '{name}': split: windows needs a length in samples")
    if not 0 <= field.percentiles[0] < field.percentiles[1] <= 100:
        raise ConfigError(f"field '{name}': percentiles {field.percentiles} must rise within 0 to 100")
    if field.cycle_range_s[0] >= field.cycle_range_s[1]:
        raise ConfigError(f"field '{name}': cycle_range_s {field.cycle_range_s} must rise")


def _most_wanted(field: SignalField) -> int | None:
    """Samples after the change of rate that the result depends on; None: all of them."""
    is_cut = field.split == "none" and field.fit == "trim_pad"
    is_local = field.band is None and field.normalise in ("none", "fixed", "unit")
    return field.length if is_cut and is_local else None


def refuses_fractions(name: str, dtype: np.dtype[Any], normalise: str) -> bool:
    """Whether a signal with fractions must be refused; `fixed` scales it to whole numbers on purpose.

    Raises:
        ConfigError: the settings alone say that there will be fractions, and `dtype` holds none.
    """
    if dtype.kind not in "iub":
        return False
    if normalise not in ("none", "fixed"):
        raise ConfigError(f"field '{name}': normalise: {normalise} gives fractions, dtype {dtype} holds none")
    return normalise == "none"


class _SignalSteps:
    def __init__(self, name: str, field: SignalField) -> None:
        self._name = name
        self._field = field
        self._dtype = plan_dtype(name, field.dtype) or np.dtype(np.float32)
        self._refuses_fractions = refuses_fractions(name, self._dtype, field.normalise)
        self._most = _most_wanted(field)

    def __call__(self, decoded: Decoded, context: Context) -> Outputs:
        # NaN and infinities run through to the finite check, which names them or lets them pass.
        with np.errstate(invalid="ignore", over="ignore"):
            signal = channels_first(decoded)
            if self._refuses_fractions:
                refuse_fractions(signal, self._dtype)
            rate = decoded.rate or self._field.source_rate
            signal, offset_s = self._cut(signal, rate, context.row.values)
            signal = waveform.mix_channels(signal, self._field.channels)
            signal, rate = self._change_band(signal, rate, context.limits)
            signal = self._normalise(signal, decoded)
            return {self._name: self._split(signal, rate, offset_s, context)}

    def _cut(self, signal: Array, rate: float | None, values: Mapping[str, Any]) -> tuple[Array, float | None]:
        """The row's segment and where it starts in seconds; the whole and None where the row has none."""
        offset_s = _read_seconds(values, self._field.offset_column)
        duration_s = _read_seconds(values, self._field.duration_column)
        if offset_s is None and duration_s is None:
            return signal, None
        offset_s = offset_s or 0.0
        return waveform.cut_segment(signal, _known(rate), offset_s, duration_s), offset_s

    def _change_band(self, signal: Array, rate: float | None, limits: Limits) -> tuple[Array, float | None]:
        """The signal at the wanted rate, with the wanted frequencies."""
        field = self._field
        if field.normalise in ("sample", "percentile"):
            waveform.check_varies(signal)  # filters leave ripples of a constant, which would then be blown up
        if field.rate is not None:
            signal = waveform.resample(signal, _known(rate), field.rate, limits, self._most)
            rate = float(field.rate)
        if field.band is not None:
            sections = waveform.design_band(*field.band, field.band_order, _known(rate))
            signal = waveform.filter_band(signal, sections)
        return signal, rate

    def _normalise(self, signal: Array, decoded: Decoded) -> Array:
        field = self._field
        if field.normalise == "fixed":
            return waveform.scale_fixed(signal, field.mean, field.std)
        if field.normalise == "sample":
            return waveform.scale_sample(signal)
        if field.normalise == "percentile":
            return waveform.scale_percentiles(signal, field.percentiles)
        if field.normalise == "unit":
            return waveform.scale_unit(signal, full_scale(decoded))
        return signal

    def _split(
        self, signal: Array, rate: float | None, offset_s: float | None, context: Context
    ) -> Array | Pieces:
        field = self._field
        if field.split == "none":
            return self._finish(signal, context.limits)
        if field.split == "windows" and field.length is not None:
            hop = field.hop or field.length
            windows = waveform.cut_windows(signal, field.length, hop, field.remainder, context.limits)
            return Pieces(tuple(cast(window, self._dtype, is_computed=True) for window in windows))
        spans = self._find_spans(signal, _known(rate), offset_s, context)
        return Pieces(tuple(self._finish(signal[:, start:stop], context.limits) for start, stop in spans))

    def _finish(self, signal: Array, limits: Limits) -> Array:
        if self._field.length is not None:
            signal = waveform.fit_length(signal, self._field.length, limits, self._field.fit)
        return cast(signal, self._dtype, is_computed=True)

    def _find_spans(
        self, signal: Array, rate: float, offset_s: float | None, context: Context
    ) -> list[tuple[int, int]]:
        """First and last sample of each cycle: from the row's annotation, where it has one."""
        column = self._field.cycle_column
        value = context.row.values.get(column) if column is not None else None
        if is_missing(value):
            spans = cycles.find_spans(signal, rate, self._field.cycle_range_s)
            return cycles.to_samples(spans, rate, signal.shape[1])
        spans = read_annotation(value, context)
        return cycles.to_samples(spans, rate, signal.shape[1], offset_s)


def channels_first(decoded: Decoded) -> Array:
    """The decoded array as a floating-point (C, T): float32 where that holds its values, else float64.

    Raises:
        SampleError: it is empty, has other than one or two axes, or holds no numbers.
    """
    array = decoded.array
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        raise SampleError("check", f"{array.dtype} of shape {array.shape} is no signal; wanted (T) or (C, T)")
    if array.size == 0:
        raise SampleError("check", "the signal has no samples")
    is_turned = "columns" in decoded.info or (decoded.rate is None and array.shape[0] > array.shape[-1])
    channels = array[None] if array.ndim == 1 else array.T if is_turned else array
    wanted = np.result_type(array.dtype, np.float32)
    return np.ascontiguousarray(channels, np.float64 if wanted.itemsize > 8 else wanted)


def full_scale(decoded: Decoded) -> tuple[float, float]:
    """The range of values a recording can have: its decoder's, or that of its integers.

    Raises:
        SampleError: floating-point numbers, which have none.
    """
    if "full_scale" in decoded.info:
        low, high = decoded.info["full_scale"]
        return float(low), float(high)
    if decoded.array.dtype.kind in "iu":
        bounds = np.iinfo(decoded.array.dtype)
        return float(bounds.min), float(bounds.max)
    raise SampleError(
        "transform",
        f"{decoded.array.dtype} values have no range of their own; normalise by percentile or sample",
    )


def read_annotation(value: Any, context: Context) -> list[cycles.Span]:
    """Cycles in seconds from a manifest cell: start times, or the path of a .tsv of start, end, state."""
    if not isinstance(value, str | list | tuple | np.ndarray | int | float):
        from flatout.source.lists import ListCell, read_cells

        if isinstance(value, ListCell):
            value = read_cells({value.column: value}).array
    starts = cycles.parse_starts(value)
    if starts is not None:
        return cycles.spans_from_starts(starts)
    if context.resolve is None:
        raise SampleError("find", f"cycle annotation '{value}' is a path, and this source has no files")
    return cycles.spans_from_states(decode_csv(context.resolve(value), context.limits).array)


def _known(rate: float | None) -> float:
    if rate is None:
        raise SampleError("transform", "the file does not say its rate; set source_rate (samples a second)")
    return rate


def _read_seconds(values: Mapping[str, Any], column: str | None) -> float | None:
    """A time in a manifest cell; None where there is no column, or no value in it."""
    value: Any = None if column is None else values.get(column)
    if is_missing(value):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError) as error:
        raise SampleError("transform", f"column '{column}' holds {value!r}, wanted seconds") from error
    if not 0 <= seconds < math.inf:
        raise SampleError("transform", f"column '{column}' holds {seconds:g}, wanted seconds from 0 on")
    return seconds
