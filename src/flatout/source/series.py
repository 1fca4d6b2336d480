"""Which folders are DICOM series: decided from a few header bytes, without a DICOM library."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

SUFFIXES = (".dcm", ".dicom", ".ima")

MOST_OTHERS = 100
"""So many files without a DICOM name, and more than with one, and nobody looks at the rest of a folder."""

NUM_PROBED = 8
"""Folders looked into before all DICOM folders of a tree are taken as series, or as single images."""

_HEAD_BYTES = 64 << 10
_SERIES_UID = bytes.fromhex("20000e00")
"""Tag (0020,000E), little endian, as nearly every file has it."""


def is_dicom_name(name: str) -> bool:
    """Whether a file with this name may be DICOM: by suffix, or a name without one (IM0001, 1.2.840.7)."""
    lower = name.lower()
    return lower.endswith(SUFFIXES) or re.fullmatch(r"[^.]+|.*\.\d+", lower) is not None


def is_dicom_folder(folder: str) -> bool:
    """Whether most visible files of a folder have DICOM names and the first of those is DICOM inside."""
    names, num_others = [], 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "DICOMDIR":
                    continue
                if is_dicom_name(entry.name):
                    names.append(entry.name)
                    continue
                num_others += 1
                if num_others > max(MOST_OTHERS, len(names)):  # a class folder may hold a million files
                    return False
    except OSError:
        return False
    return len(names) > num_others and holds_dicom(folder, names)


def holds_dicom(folder: str, names: Sequence[str]) -> bool:
    """The same for a folder whose files are known already."""
    if not names or not all(is_dicom_name(name) for name in names):
        return False
    return _head(os.path.join(folder, slices_first(names)[0]))[128:132] == b"DICM"


def slices_first(names: Sequence[str]) -> list[str]:
    """Likely slices first: by suffix, then those with a number (AUTHORS may lie beside IM0001)."""
    return sorted(
        names,
        key=lambda name: (not name.lower().endswith(SUFFIXES), not any(map(str.isdigit, name)), name),
    )


def are_series(folders: Iterable[tuple[str, Sequence[str]]]) -> bool:
    """Whether DICOM folders hold one series each, judged by the first two files of a few of them.

    Files of one folder that name different series are single images (X-rays in a class folder).
    """
    verdicts = []
    for folder, names in folders:
        if len(names) > 1:
            uids = [_series_uid(_head(os.path.join(folder, name))) for name in slices_first(names)[:2]]
            verdicts.append(uids[0] == uids[1])
        if len(verdicts) == NUM_PROBED:
            break
    return sum(verdicts) * 2 > len(verdicts)


def _head(path: str) -> bytes:
    try:
        if not os.path.isfile(path):  # noqa: PTH113  a pipe would never end
            return b""
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def _series_uid(head: bytes) -> bytes | None:
    """SeriesInstanceUID of a file's first bytes, from explicit (`UI`, 2-byte length) or implicit VR."""
    at = head.find(_SERIES_UID, 132)
    if at < 0:
        return None
    explicit = head[at + 4 : at + 6] == b"UI"
    length = int.from_bytes(head[at + 6 : at + 8] if explicit else head[at + 4 : at + 8], "little")
    return head[at + 8 : at + 8 + min(length, 64)].rstrip(b"\0 ")
