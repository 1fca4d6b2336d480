"""Laws of the steps between decoder and store."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.signal import butter, sosfreqz

from flatout.errors import SampleError
from flatout.source import waveform
from flatout.types import Limits

LIMITS = Limits()

RATES = st.sampled_from([100, 250, 333.33, 1000, 2000, 4410, 8000, 11025, 16000, 44100, 48000])


def tone(frequency: float, rate: float, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(round(seconds * rate)) / rate, dtype=np.float32)[None]


@pytest.fixture(params=["soxr", "scipy"])
def library(request, monkeypatch) -> str:
    """Each resampling library in turn."""
    if request.param == "scipy":
        monkeypatch.setattr(waveform, "_soxr", lambda: None)
    assert waveform.resampler() == request.param
    return request.param


@given(st.integers(1, 3000), RATES, RATES, st.integers(1, 3))
def test_resampled_length_is_the_rounded_ratio(num_samples, rate, new_rate, num_channels):
    exact = Fraction(str(new_rate)) / Fraction(str(rate)) * num_samples
    expected = math.floor(exact + Fraction(1, 2))
    signal = np.ones((num_channels, num_samples), np.float32)
    if expected == 0:
        with pytest.raises(SampleError):
            waveform.resample(signal, rate, new_rate, LIMITS)
        return
    found = waveform.resample(signal, rate, new_rate, LIMITS)
    assert found.shape == (num_channels, expected)
    assert found.dtype == np.float32


@pytest.mark.parametrize(("rate", "new_rate"), [(8000, 5000), (8000, 16000), (44100, 16000), (1000, 250)])
@pytest.mark.parametrize("num_samples", [1, 2, 7, 100, 1023])
def test_both_libraries_keep_the_length_law(library, rate, new_rate, num_samples):
    expected = math.floor(Fraction(new_rate, rate) * num_samples + Fraction(1, 2))
    if expected:
        assert waveform.resample(np.ones((2, num_samples)), rate, new_rate, LIMITS).shape == (2, expected)


@pytest.mark.parametrize(("rate", "new_rate"), [(8000, 5000), (8000, 16000), (44100, 16000)])
def test_resampling_keeps_a_tone_and_its_time(library, rate, new_rate):
    both = np.concatenate([tone(440, rate), tone(300, rate)])
    found = waveform.resample(both, rate, new_rate, LIMITS)
    expected = np.concatenate([tone(440, new_rate), tone(300, new_rate)])
    inner = slice(new_rate // 10, -new_rate // 10)
    np.testing.assert_allclose(found[:, inner], expected[:, inner], atol=0.01)


def test_resampling_removes_what_the_new_rate_cannot_hold(library):
    found = waveform.resample(tone(3500, 8000), 8000, 4000, LIMITS)
    assert np.abs(found[:, 400:-400]).max() < 0.02


def test_channels_are_resampled_as_if_alone(library):
    rng = np.random.default_rng(0)
    stereo = rng.normal(size=(2, 4000)).astype(np.float32)
    found = waveform.resample(stereo, 8000, 5000, LIMITS)
    for channel in range(2):
        alone = waveform.resample(stereo[channel : channel + 1], 8000, 5000, LIMITS)
        np.testing.assert_allclose(found[channel], alone[0], atol=1e-5)


def test_same_rate_is_the_same_array():
    signal = tone(10, 100)
    assert waveform.resample(signal, 100, 100, LIMITS) is signal


def test_absurd_rates_are_refused_before_memory_is_taken(library):
    with pytest.raises(SampleError, match="is the rate in the file right"):
        waveform.resample(np.ones((1, 100_000), np.float32), 1, 48000, LIMITS)
    with pytest.raises(SampleError):
        waveform.resample(np.ones((1, 100), np.float32), 2**31 - 1, 8000, LIMITS)


def test_odd_ratio_without_soxr_names_the_extra(monkeypatch):
    monkeypatch.setattr(waveform, "_soxr", lambda: None)
    with pytest.raises(SampleError, match=r"flatout\[audio\]"):
        waveform.resample(np.ones((1, 100), np.float32), 1.0000001, 3, LIMITS)


@given(st.integers(1, 400), st.integers(1, 50), st.integers(1, 70), st.sampled_from(["drop", "pad"]))
def test_windows_are_slices_at_every_hop(num_samples, length, hop, remainder):
    signal = np.arange(1, 2 * num_samples + 1).reshape(2, num_samples)
    if num_samples < length and remainder == "drop":
        with pytest.raises(SampleError, match="remainder to pad"):
            waveform.cut_windows(signal, length, hop, remainder, LIMITS)
        return
    windows = waveform.cut_windows(signal, length, hop, remainder, LIMITS)
    padded = np.pad(signal, ((0, 0), (0, length)))
    for number, window in enumerate(windows):
        np.testing.assert_array_equal(window, padded[:, number * hop : number * hop + length])
    num_whole = sum(start + length <= num_samples for start in range(0, num_samples, hop))
    if remainder == "drop":
        assert len(windows) == num_whole
    elif hop <= length:  # every sample is in some window, and no window holds nothing new
        assert (len(windows) - 1) * hop + length >= num_samples
        assert len(windows) == 1 or (len(windows) - 2) * hop + length < num_samples


def test_windows_that_overlap_too_much_are_refused_before_memory_is_taken():
    minute = np.zeros((1, 60 * 8000), np.float32)
    told = r"472,001 windows of 8,000, one every 1, take 14\.5 GiB together; max_sample_bytes is 2\.0 GiB"
    with pytest.raises(SampleError, match=told):
        waveform.cut_windows(minute, 8000, 1, "drop", LIMITS)
    assert len(waveform.cut_windows(minute, 8000, 10, "drop", LIMITS)) == 47_201
    with pytest.raises(SampleError, match=r"479,999 windows of 2, one every 1, take 472\.\d MiB"):
        waveform.cut_windows(minute, 2, 1, "drop", Limits(max_sample_bytes=64 << 20))


@given(st.integers(1, 300), st.integers(1, 60))
def test_padded_windows_side_by_side_are_the_signal(num_samples, length):
    signal = np.random.default_rng(num_samples).normal(size=(1, num_samples))
    joined = np.concatenate(waveform.cut_windows(signal, length, length, "pad", LIMITS), axis=1)
    np.testing.assert_array_equal(joined[:, :num_samples], signal)
    assert not joined[:, num_samples:].any()
    assert joined.shape[1] - num_samples < length


@given(st.integers(1, 200), st.integers(1, 300), st.sampled_from(["trim_pad", "resample"]))
def test_fit_gives_the_length(num_samples, length, how):
    signal = np.linspace(1, 2, num_samples, dtype=np.float32)[None]
    found = waveform.fit_length(signal, length, LIMITS, how)
    assert found.shape == (1, length)
    if how == "trim_pad":
        common = min(length, num_samples)
        np.testing.assert_array_equal(found[:, :common], signal[:, :common])
        assert not found[:, common:].any()


@pytest.mark.parametrize(("frequency", "gain"), [(5, 0.0), (60, 1.0), (100, 1.0), (150, 1.0), (900, 0.0)])
def test_band_keeps_and_kills_tones(frequency, gain):
    sections = waveform.design_band(25.0, 400.0, 4, 4000.0)
    signal = tone(frequency, 4000, seconds=3)
    found = waveform.filter_band(signal, sections)
    inner = slice(4000, 8000)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, inner], gain * signal[:, inner], atol=0.01)


def test_band_from_zero_is_a_low_pass():
    sections = waveform.design_band(0.0, 100.0, 4, 1000.0)
    np.testing.assert_array_equal(sections, butter(4, 100, fs=1000, output="sos"))
    _, response = sosfreqz(sections, [0.0], fs=1000)
    assert abs(response[0]) == pytest.approx(1)


def test_band_is_designed_once_for_a_rate():
    assert waveform.design_band(20.0, 200.0, 3, 2000.0) is waveform.design_band(20.0, 200.0, 3, 2000.0)


def test_band_beyond_half_the_rate_and_short_signals():
    with pytest.raises(SampleError, match="only 500 Hz"):
        waveform.design_band(20.0, 500.0, 4, 1000.0)
    with pytest.raises(SampleError, match="10 samples are too few"):
        waveform.filter_band(np.ones((1, 10)), waveform.design_band(20.0, 200.0, 4, 1000.0))


@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=60),
    st.floats(0.01, 100),
    st.floats(-100, 100),
)
def test_sample_scaling_ignores_gain_and_offset(values, gain, offset):
    signal = np.array([values], np.float64)
    assume(np.ptp(signal) > 1e-2)
    found = waveform.scale_sample(signal)
    assert abs(found.mean()) < 1e-6
    assert found.std() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(waveform.scale_sample(signal * gain + offset), found, atol=1e-4)


@given(st.lists(st.integers(-1000, 1000), min_size=3, max_size=60, unique=True))
def test_percentiles_become_zero_and_one(values):
    found = waveform.scale_percentiles(np.array([values], np.float64), (10, 90))
    np.testing.assert_allclose(np.percentile(found, (10, 90)), (0, 1), atol=1e-9)


def test_constants_are_refused():
    for value in (0.0, 0.1, 1e6):
        with pytest.raises(SampleError, match="constant"):
            waveform.scale_sample(np.full((2, 50), value, np.float32))
        with pytest.raises(SampleError, match="nothing to normalise by"):
            waveform.scale_percentiles(np.full((2, 50), value, np.float32), (1, 99))


@pytest.mark.parametrize("odd", [[np.nan], [np.inf, np.nan], [-np.inf]])
def test_values_that_are_not_finite_leave_the_others_as_without_them(odd):
    usual = np.random.default_rng(0).normal(3, 2, (1, 200)).astype(np.float32)
    signal = np.concatenate([usual, np.array([odd], np.float32)], axis=1)
    with np.errstate(invalid="ignore"):
        for scale in (waveform.scale_sample, lambda x: waveform.scale_percentiles(x, (5, 95))):
            found = scale(signal)
            np.testing.assert_array_equal(found[:, :200], scale(usual))
            assert not np.isfinite(found[:, 200:]).any()
            with pytest.raises(SampleError, match=r"constant|nothing to normalise by"):
                scale(np.concatenate([np.full((1, 9), 2, np.float32), signal[:, 200:]], axis=1))
            assert not np.isfinite(scale(signal[:, 200:])).any()


def test_fixed_scaling_by_number_and_by_channel():
    signal = np.array([[1.0, 3.0], [10.0, 30.0]], np.float32)
    assert waveform.scale_fixed(signal, 1.0, 2.0).tolist() == [[0, 1], [4.5, 14.5]]
    assert waveform.scale_fixed(signal, [1.0, 10.0], [2.0, 20.0]).tolist() == [[0, 1], [0, 1]]
    assert waveform.scale_fixed(signal, 1.0, 2.0).dtype == np.float32
    with pytest.raises(SampleError, match="3 numbers for 2 channels"):
        waveform.scale_fixed(signal, [1.0, 2.0, 3.0], 1.0)


def test_unit_scaling_maps_the_range_and_clips():
    signal = np.array([[-1.0, 0.0, 1.0, 1.2]], np.float32)
    assert waveform.scale_unit(signal, (-1.0, 1.0)).tolist() == [[0, 0.5, 1, 1]]


def test_channel_rules():
    stereo = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)
    assert waveform.mix_channels(stereo, "first").tolist() == [[1, 2]]
    assert waveform.mix_channels(stereo, "mean").tolist() == [[2, 4]]
    assert waveform.mix_channels(stereo, "keep") is stereo
    assert waveform.mix_channels(stereo[:1], "refuse").tolist() == [[1, 2]]
    with pytest.raises(SampleError, match="first, mean or keep"):
        waveform.mix_channels(stereo, "refuse")


def test_segments():
    signal = np.arange(100)[None]
    assert waveform.cut_segment(signal, 10.0, 2.0, 1.5)[0].tolist() == list(range(20, 35))
    assert waveform.cut_segment(signal, 10.0, 9.0, None)[0].tolist() == list(range(90, 100))
    # A duration rounded up to the next hundredth of a second is the rest of the recording.
    assert waveform.cut_segment(signal, 1000.0, 0.05, 0.06)[0].tolist() == list(range(50, 100))
    for offset_s, duration_s in [(0.0, 11.0), (10.0, None), (9.0, 2.0), (3.0, 0.0)]:
        with pytest.raises(SampleError, match="signal has 100"):
            waveform.cut_segment(signal, 10.0, offset_s, duration_s)


def test_the_configured_limit_holds(library):
    signal, few = np.ones((2, 100), np.float32), Limits(max_sample_bytes=4000)
    assert waveform.resample(signal, 10, 50, few).nbytes == 4000
    with pytest.raises(SampleError, match=r"become 600 at 60 Hz \(max_sample_bytes is 4,000\)"):
        waveform.resample(signal, 10, 60, few)
    for how in ("trim_pad", "resample"):
        assert waveform.fit_length(signal, 500, few, how).nbytes == 4000
        with pytest.raises(SampleError, match="max_sample_bytes"):
            waveform.fit_length(signal, 501, few, how)
    with pytest.raises(SampleError, match="max_sample_bytes"):
        waveform.cut_windows(signal, 501, 501, "pad", few)
