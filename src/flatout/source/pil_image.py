"""PIL images as arrays and back: pixels, and what else an image carries (palette, transparency, EXIF)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from flatout.source.plain import from_text, is_plain, to_text
from flatout.types import Array


def is_image(value: Any) -> bool:
    """Whether this is a PIL image; nothing is imported to find out."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def image_to_arrays(image: Any) -> tuple[Array, Array]:
    """Pixels (height, width) or (height, width, bands), and the rest as text in bytes; empty if there is none.

    Raises:
        ValueError: the image's mode cannot be had back from an array.
    """
    try:
        pixels = np.asarray(image)
        _from_pixels(image.mode, pixels[:1, :1])
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"an image of mode {image.mode} has no array form: {error}") from error
    rest: dict[str, Any] = {}
    if image.palette is not None and image.mode in ("P", "PA"):
        mode = image.palette.mode
        rest["palette"] = (mode, bytes(image.getpalette(mode)))
    if info := {name: value for name, value in image.info.items() if is_plain(value)}:
        rest["info"] = info
    return pixels, np.frombuffer(to_text(rest).encode() if rest else b"", np.uint8)


def image_from_arrays(mode: str, pixels: Array, rest: Array) -> Any:
    """An image of its own memory, with the same mode, size, pixels, palette and plain `info`."""
    image = _from_pixels(mode, pixels)
    if rest.size:
        known = from_text(rest.tobytes().decode())
        if "palette" in known:
            palette_mode, data = known["palette"]
            image.putpalette(data, palette_mode)
        image.info.update(known.get("info", {}))
    return image


def _from_pixels(mode: str, pixels: Array) -> Any:
    from PIL import Image, ImageMode

    if mode == "1":
        return Image.fromarray(pixels)  # bits are packed in bytes, but not in the array
    height, width = pixels.shape[:2]
    in_mode = pixels.astype(ImageMode.getmode(mode).typestr, copy=False)  # I;16B is big endian
    return Image.frombytes(mode, (width, height), in_mode.tobytes())
