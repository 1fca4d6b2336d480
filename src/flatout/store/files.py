"""Durable files: bytes reach the disk whole or not at all, and a rename makes them visible."""

from __future__ import annotations

import errno
import os
import re
import sys
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

TEMPORARY = ".tmp"
"""Suffix of files that are being written; leftovers are removed by the next prepare."""
_OURS = re.compile(rf".*\.\d+-[0-9a-f]{{8}}{re.escape(TEMPORARY)}")
"""How `temporary_beside` names them: a folder may hold files of others that end alike."""

BINARY = getattr(os, "O_BINARY", 0)
"""Windows would translate line ends in raw bytes without it."""
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY

Buffer = Any
"""bytes, memoryview or a C-contiguous ndarray."""


def write_all(descriptor: int, data: Buffer) -> None:
    """Write every byte: os.write stops at 2 GiB and may stop earlier."""
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def sync_file(descriptor: int) -> None:
    """Make the file's bytes survive a power cut."""
    if sys.platform == "darwin":  # fsync there only hands the bytes to the drive's cache
        import fcntl

        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError as error:  # network and FAT mounts do not know it; fsync is all they have
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the folder's names survive a power cut. Windows has no such call and needs none.

    Some network and user-space mounts refuse it for folders; nothing more can be done there.
    """
    if os.name == "nt":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing; their names survive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def temporary_beside(path: Path) -> Path:
    """A name in the same folder that no other writer uses."""
    return path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{TEMPORARY}")


def write_durable(path: Path, chunks: Iterable[Buffer], *, sync: bool = True) -> None:
    """Replace `path` by the concatenated chunks: tmp -> fsync -> rename -> fsync(folder)."""
    temporary = temporary_beside(path)
    try:
        descriptor = os.open(temporary, NEW_FILE, 0o666)
        try:
            for chunk in chunks:
                write_all(descriptor, chunk)
            if sync:
                sync_file(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if sync:
        sync_folder(path.parent)


def write_durable_text(path: Path, text: str) -> None:
    """Replace `path` by UTF-8 text, durably."""
    write_durable(path, [text.encode()])


def is_leftover(name: str) -> bool:
    """Whether a file of this name is one that is being written, or was when its writer was killed."""
    return _OURS.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files that a killed writer left."""
    for path in folder.glob(f"*{TEMPORARY}"):
        if is_leftover(path.name):
            with suppress(FileNotFoundError):
                path.unlink()
