"""Panels: one sample as a small picture: waveform and spectrogram of a signal, middle slices of a volume."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from flatout.errors import ConfigError
from flatout.types import Array

WIDTH = 640
HEIGHT = 180
"""Pixels of a waveform or a spectrogram; the sheet is shrunk to half, which smooths all lines."""
SLICE_HEIGHT = 360
GAP = 8
BACKGROUND = (255, 255, 255)
FRAME = (205, 210, 218)
ZERO_LINE = (225, 228, 234)
LINE = (31, 90, 166)
FLOOR_DB = 80.0
"""Range of a spectrogram's colours below its loudest point."""
_ANCHORS = [
    (68, 1, 84),
    (71, 44, 122),
    (59, 81, 139),
    (44, 113, 142),
    (33, 144, 141),
    (39, 173, 129),
    (92, 200, 99),
    (170, 220, 50),
    (253, 231, 37),
]


class Scale:
    """What makes the pictures of one sample comparable: limits taken from the original."""

    def __init__(self, original: Array) -> None:
        finite = original[np.isfinite(original)].astype(np.float64)
        self.low, self.high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if self.low == self.high:
            self.low, self.high = self.low - 0.5, self.high + 0.5
        self.peak = 1.3 * max(abs(self.low), abs(self.high))
        """Waveforms have room for what is a little louder."""
        self.loudest_db = float(_spectrum(_first(original)).max()) if original.ndim <= 2 else 0.0


def panel(array: Array, scale: Scale) -> Image.Image:
    """(C, T), (C, H, W) or (C, D, H, W) in, its picture out.

    Raises:
        ConfigError: it has another number of axes.
    """
    if array.ndim <= 2 and array.size:
        return _stacked([_waveform(_first(array), scale), _spectrogram(_first(array), scale)])
    if array.ndim == 3:
        return _framed(_slice(array, scale))
    if array.ndim == 4:
        middles = [np.take(array, array.shape[axis] // 2, axis=axis) for axis in (1, 2, 3)]
        return _beside([_framed(_slice(middle, scale)) for middle in middles])
    raise ConfigError(
        f"a sample of shape {array.shape} cannot be drawn: wanted (C, T), (C, H, W) or (C, D, H, W)"
    )


def _first(array: Array) -> Array:
    """The first channel of a signal."""
    return array if array.ndim == 1 else array[0]


def _waveform(values: Array, scale: Scale) -> Image.Image:
    """Lowest and highest value under each column of pixels, so that no peak is lost."""
    image = Image.new("RGB", (WIDTH, HEIGHT), BACKGROUND)
    draw = ImageDraw.Draw(image)
    middle = HEIGHT / 2
    draw.line([(0, middle), (WIDTH, middle)], fill=ZERO_LINE, width=2)
    heights = middle - np.nan_to_num(values.astype(np.float64)).clip(-scale.peak, scale.peak) / scale.peak * (
        middle - 2
    )
    if len(values) < 2 * WIDTH:
        places = np.linspace(0, WIDTH - 1, len(values))
        draw.line(list(zip(places.tolist(), heights.tolist(), strict=True)), fill=LINE, width=2)
    else:
        edges = np.linspace(0, len(values), WIDTH + 1).astype(int)[:-1]
        lows, highs = np.minimum.reduceat(heights, edges), np.maximum.reduceat(heights, edges)
        for at, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True)):
            draw.line([(at, low), (at, high + 1)], fill=LINE)
    return _framed(image)


def _spectrogram(values: Array, scale: Scale) -> Image.Image:
    """Low frequencies at the bottom; the same colours for all pictures of a sample."""
    power = _spectrum(values)
    level = ((power - scale.loudest_db) / FLOOR_DB + 1.0).clip(0.0, 1.0)
    places = level[::-1] * (len(_ANCHORS) - 1)
    anchors = np.array(_ANCHORS, np.float64)
    below = np.floor(places).astype(int).clip(0, len(_ANCHORS) - 2)
    share = (places - below)[..., None]
    colours = anchors[below] * (1 - share) + anchors[below + 1] * share
    image = Image.fromarray(colours.round().astype(np.uint8))
    return _framed(image.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR))


def _spectrum(values: Array) -> Any:
    """(T,) in, decibels (frequencies, times) out; windows of a 32nd of the signal that overlap by half."""
    values = np.nan_to_num(np.asarray(values, np.float64))
    size = int(np.clip(2 ** round(np.log2(max(len(values) / 32, 1))), 16, 1024))
    padded = np.pad(values, size // 2, mode="reflect" if len(values) > size // 2 else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[:: max(size // 4, 1)]
    spectra = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1)).T
    return 20 * np.log10(spectra + 1e-12)


def _slice(array: Array, scale: Scale) -> Image.Image:
    """(C, H, W) in; three channels are colours, otherwise the first one is drawn."""
    shown = array[:3].transpose(1, 2, 0) if len(array) == 3 else array[0]
    grey = (np.nan_to_num(shown.astype(np.float64)) - scale.low) / (scale.high - scale.low) * 255
    image = Image.fromarray(grey.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    factor = SLICE_HEIGHT / max(image.height, 1)
    size = (max(1, round(image.width * factor)), SLICE_HEIGHT)
    return image.resize(size, Image.Resampling.NEAREST if factor > 1 else Image.Resampling.LANCZOS)


def _framed(image: Image.Image) -> Image.Image:
    ImageDraw.Draw(image).rectangle([0, 0, image.width - 1, image.height - 1], outline=FRAME, width=2)
    return image


def _stacked(images: list[Image.Image]) -> Image.Image:
    height = sum(image.height for image in images) + GAP * (len(images) - 1)
    sheet = Image.new("RGB", (max(image.width for image in images), height), BACKGROUND)
    at = 0
    for image in images:
        sheet.paste(image, (0, at))
        at += image.height + GAP
    return sheet


def _beside(images: list[Image.Image]) -> Image.Image:
    width = sum(image.width for image in images) + GAP * (len(images) - 1)
    sheet = Image.new("RGB", (width, max(image.height for image in images)), BACKGROUND)
    at = 0
    for image in images:
        sheet.paste(image, (at, 0))
        at += image.width + GAP
    return sheet
