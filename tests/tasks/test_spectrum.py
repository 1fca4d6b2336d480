"""The spectrum of a recording: right bands, and the same in any batch."""

from __future__ import annotations

import math

import pytest
import torch

from flatout.tasks.spectrum import LogMel, mel_bands


def tone(frequency_hz: float, num: int, rate: int) -> torch.Tensor:
    return torch.sin(2 * math.pi * frequency_hz * torch.arange(num) / rate)


@pytest.mark.parametrize(("rate", "num_bands"), [(8000, 40), (16000, 64), (16000, 128), (8000, 128)])
def test_every_band_hears_something_and_the_order_is_that_of_frequency(rate: int, num_bands: int) -> None:
    bands = mel_bands(rate, 256 if rate == 8000 else 512, num_bands)
    assert (bands >= 0).all()
    assert (bands.sum(1) > 0).all()
    peaks = bands.argmax(1)
    assert (peaks.diff() >= 0).all()
    assert peaks[-1] < bands.shape[1]


def test_a_tone_is_where_it_belongs() -> None:
    mel = LogMel(8000, 40)
    silence = torch.zeros(4000)
    places = []
    for frequency_hz in (300.0, 900.0, 2500.0):
        signal = torch.cat([silence, tone(frequency_hz, 4000, 8000)])[None]
        frames, num = mel(signal, torch.tensor([8000]))
        assert frames.shape == (1, 40, 101)
        assert num.tolist() == [101]
        places.append(
            int(
                (mel.bands @ torch.stft(signal, 256, 80, 200, mel.window, return_complex=True).abs()[0])
                .sum(1)
                .argmax()
            )
        )
        loud = frames[0, places[-1]]
        assert loud[60:].mean() > 0.9  # half the time silent, half loud: one deviation either way
        assert loud[:40].mean() < -0.9
    assert places == sorted(set(places))


def test_a_recording_is_the_same_in_any_batch() -> None:
    mel = LogMel(16000, 64)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([8000, 3100, 160, 1])
    batch = torch.randn(4, 8000, generator=generator)  # what stands behind an end must not matter
    frames, num = mel(batch, lengths)
    for at, length in enumerate(lengths.tolist()):
        alone, num_alone = mel(batch[at : at + 1, :length], lengths[at : at + 1])
        assert num[at] == num_alone[0] == length // 160 + 1
        torch.testing.assert_close(frames[at, :, : num[at]], alone[0, :, : num[at]], atol=1e-3, rtol=1e-3)
        assert not frames[at, :, num[at] :].any()
        assert frames.isfinite().all()


def test_silence_is_finite_and_half_precision_does_not_reach_it() -> None:
    mel = LogMel(8000, 40)
    loud = torch.cat([tone(440.0, 2000, 8000) * 3e4, torch.zeros(2000)])
    signals, lengths = torch.stack([torch.zeros(4000), loud]), torch.tensor([4000, 4000])
    plain, _ = mel(signals, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = mel(signals, lengths)
    assert plain.isfinite().all()
    assert half.dtype == torch.float32
    assert torch.equal(plain, half)
