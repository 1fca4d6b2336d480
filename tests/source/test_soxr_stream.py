"""Rates by soxr's streams: bit for bit what `soxr.resample` gives, whatever was resampled before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.config.fields import SignalField
from flatout.source import soxr_stream, waveform
from flatout.source.signal import make_steps
from flatout.source.soxr_stream import change_rate
from flatout.types import Array, Context, Decoded, Limits, Row

soxr = pytest.importorskip("soxr")

RATES = [100, 250, 333.33, 1000, 2000, 4000, 5000, 8000, 11025, 12345, 16000, 22050, 44100, 48000]
Pairs = st.tuples(st.sampled_from(RATES), st.sampled_from(RATES)).filter(lambda p: 1 / 60 < p[0] / p[1] < 60)


def noise(num_frames: int, num_channels: int, dtype: str, seed: int = 0) -> Array:
    frames = np.random.default_rng(seed).standard_normal((num_frames, num_channels)).astype(dtype)
    return frames[:, 0].copy() if num_channels == 1 else frames


@settings(deadline=None, max_examples=60)
@given(
    rates=Pairs,
    num_frames=st.one_of(st.integers(1, 40), st.integers(1, 9000)),
    num_channels=st.sampled_from([1, 1, 2, 3]),
    dtype=st.sampled_from(["float32", "float64"]),
    share=st.floats(0, 1),
)
def test_the_same_bits_and_their_beginning(
    rates: tuple[float, float], num_frames: int, num_channels: int, dtype: str, share: float
) -> None:
    frames = noise(num_frames, num_channels, dtype, seed=num_frames)
    whole = soxr.resample(frames, *rates, quality="HQ")
    for _ in range(2):  # the second time by a stream
        np.testing.assert_array_equal(change_rate(soxr, frames, *rates), whole, strict=True)
    most = int(len(whole) * share)
    found = change_rate(soxr, frames, *rates, most)
    assert len(found) >= most
    np.testing.assert_array_equal(found[:most], whole[:most], strict=True)


def test_no_more_than_is_wanted_is_resampled(monkeypatch: pytest.MonkeyPatch) -> None:
    given_frames: list[int] = []

    class Counting(soxr.ResampleStream):  # type: ignore[misc]
        def resample_chunk(self, x: Array, last: bool = False) -> Array:
            given_frames.append(len(x))
            found: Array = super().resample_chunk(x, last)
            return found

    monkeypatch.setattr(soxr, "ResampleStream", Counting)
    monkeypatch.setattr(soxr_stream._kept, "streams", {}, raising=False)
    frames = noise(100_000, 1, "float32")
    whole = change_rate(soxr, frames, 8000, 5000, 4000)
    assert not given_frames  # rates that come once are not worth a stream
    found = change_rate(soxr, frames, 8000, 5000, 4000)
    assert 0 < sum(given_frames) < 10_000
    np.testing.assert_array_equal(found[:4000], whole[:4000])
    monkeypatch.setattr(soxr_stream, "LEAD", 1)  # the stream is behind by more: it is fed again and again
    given_frames.clear()
    again = change_rate(soxr, frames, 8000, 5000, 4000)
    assert len(given_frames) > 1
    np.testing.assert_array_equal(again[:4000], found[:4000])


def test_nothing_of_a_recording_stays_for_the_next() -> None:
    loud, soft = noise(3000, 1, "float32") * 1e6, noise(3000, 1, "float32", seed=1)
    wanted = soxr.resample(soft, 8000, 5000, quality="HQ")
    for _ in range(2):
        change_rate(soxr, loud, 8000, 5000, 100)
    np.testing.assert_array_equal(change_rate(soxr, soft, 8000, 5000), wanted)
    change_rate(soxr, np.full(3000, np.nan, np.float32), 8000, 5000)
    with pytest.raises(TypeError):
        soxr_stream._kept.streams[8000, 5000, 1, "f"].resample_chunk(loud.astype(np.float64))
    np.testing.assert_array_equal(change_rate(soxr, soft, 8000, 5000), wanted)


def test_threads_have_streams_of_their_own() -> None:
    recordings = [noise(2000 + 100 * seed, 1, "float32", seed) for seed in range(16)]
    wanted = [soxr.resample(frames, 8000, 5000, quality="HQ") for frames in recordings]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            found = threads.map(lambda frames: change_rate(soxr, frames, 8000, 5000), recordings)
            for got, want in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(got, want)


def test_only_so_many_streams_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soxr_stream._kept, "streams", {}, raising=False)
    frames = noise(50, 1, "float32")
    for rate in range(1000, 1000 + 3 * soxr_stream.MOST_KEPT):
        change_rate(soxr, frames, rate, 2000)
        assert len(soxr_stream._kept.streams) <= soxr_stream.MOST_KEPT


def test_long_recordings_are_left_to_the_library() -> None:
    frames = noise(soxr_stream.MOST_VALUES + 1, 1, "float32")
    found = change_rate(soxr, frames, 8000, 5000)
    np.testing.assert_array_equal(found, soxr.resample(frames, 8000, 5000, quality="HQ"))


@settings(deadline=None, max_examples=40)
@given(
    num_samples=st.integers(200, 9000),
    length=st.integers(1, 6000),
    changes=st.sampled_from(
        [
            {},
            {"normalise": "fixed", "mean": 0.5, "std": 2.0},
            {"normalise": "unit"},
            {"normalise": "sample"},
            {"normalise": "percentile"},
            {"band": (20, 900), "band_order": 1},
            {"fit": "resample"},
            {"split": "windows", "remainder": "pad"},
            {"channels": "mean"},
        ]
    ),
)
def test_a_cut_recording_is_the_same_as_if_all_of_it_were_resampled(
    num_samples: int, length: int, changes: dict[str, Any]
) -> None:
    sound = np.random.default_rng(num_samples).standard_normal((1, num_samples)).astype(np.float32)
    field = SignalField(rate=5000, length=length, **changes)
    decoded = Decoded(sound, rate=8000.0, info={"full_scale": (-1.0, 1.0)})
    context = Context(Row("k", {}), limits=Limits())
    found: Any = make_steps("x", field, {})(decoded, context)["x"]
    whole = waveform.resample
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waveform, "resample", lambda *given: whole(*given[:4]))
        wanted: Any = make_steps("x", field, {})(decoded, context)["x"]
    for got, want in zip(getattr(found, "arrays", [found]), getattr(wanted, "arrays", [wanted]), strict=True):
        np.testing.assert_array_equal(got, want, strict=True)
