"""A transform of one's own: a row of the manifest in, named arrays out.

    flatout prepare FOLDER --config examples/prepare_custom_transform.yaml --output-dir STORE

The config names it as module:function; the module stands beside the config file. When this file changes, the
next prepare notices and makes the samples again.
"""

from __future__ import annotations

import wave
from typing import Any

import numpy as np

CLASSES = ("AS", "MR", "MS", "MVP", "N")


def spectrogram(row: dict[str, Any], *, num_fft: int, hop: int, num_frames: int) -> dict[str, Any]:
    """A 16-bit WAV as a log spectrogram (1, num_fft / 2 + 1, num_frames), cut or padded in time.

    `row` holds the columns of the manifest and `key`; paths are absolute already. Raise for a file that
    cannot be used: it goes to quarantine with the message, and the run goes on.
    """
    with wave.open(row["file"]) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768.0
    if len(sound) < num_fft:
        raise ValueError(f"{len(sound)} samples are fewer than one window of {num_fft}")
    windows = np.lib.stride_tricks.sliding_window_view(sound, num_fft)[::hop] * np.hanning(num_fft)
    power = np.log1p(np.abs(np.fft.rfft(windows)).T[:, :num_frames])
    padded = np.pad(power, ((0, 0), (0, num_frames - power.shape[1])))
    return {"spectrogram": padded[None].astype(np.float32), "label": CLASSES.index(row["label"])}
