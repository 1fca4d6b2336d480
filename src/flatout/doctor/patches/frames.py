"""Whose line is it: the nearest frame of the user's own code, by file and line."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import FrameType

_LIBRARIES = tuple(
    {
        str(Path(path).resolve())
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    | {str(Path(__file__).resolve().parents[2])}
)
"""The standard library, installed packages, and flatout itself."""
_known: dict[str, bool] = {}


def is_users(file: str) -> bool:
    """Whether a file is the user's own and no library's."""
    known = _known.get(file)
    if known is None:
        known = _known[file] = not file.startswith(("<", *_LIBRARIES)) and not _is_below_libraries(file)
    return known


def _is_below_libraries(file: str) -> bool:
    try:
        return str(Path(file).resolve()).startswith(_LIBRARIES)
    except OSError:
        return False


def users_place(depth: int = 2) -> tuple[str, int]:
    """File and line of the user's code that led to here; ("", 0) where no frame is the user's."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0
