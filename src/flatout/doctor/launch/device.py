"""The GPU as NVIDIA's management library sees it: asked from outside, it makes the script wait for nothing."""

from __future__ import annotations

import os
from typing import Any


class Device:
    """The first GPU that the script may use; without one, or without the library, there is nothing to tell."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handle: Any = None
        try:
            import pynvml  # type: ignore[import-untyped]
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(_first_index())
            self._library = pynvml
        except pynvml.NVMLError:
            return

    def look(self) -> dict[str, Any]:
        """Utilisation, 0 to 1, and bytes in use, as `Look` names them."""
        if self._library is None:
            return {}
        try:
            rates = self._library.nvmlDeviceGetUtilizationRates(self._handle)
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle)
        except self._library.NVMLError:
            return {}
        return {"device_utilisation": rates.gpu / 100, "device_bytes": int(memory.used)}


def _first_index() -> int:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return int(first) if first.isdigit() else 0
