"""Writing past the page cache: large new files that nobody is about to read go straight to the disk.

On a local filesystem that takes it (Linux, O_DIRECT) the kernel looks for no free pages and copies nothing.
Everywhere else, and from wherever it is refused, the bytes go by way of the cache as usual.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from flatout.store.file_system import file_system_of, is_remote

BLOCK_BYTES = 4096
"""Memory, places in the file and sizes are multiples of this: no disk asks for more."""
PIECE_BYTES = 1 << 20
"""What is joined for one call: in a cache that holds it, and for few enough calls."""
ALIGNED_BYTES = 16 << 20
"""What one call writes at the most of what need not be joined. Behind each the writing thread takes a core from
a decoder: half as many calls are worth 1 to 2 % of a prepare (medians of two and three interleaved runs)."""


def in_pieces(buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes in the same order, from aligned memory; all pieces but the last are whole blocks.

    What is aligned already is not copied. A piece holds until the next one is asked for.
    """
    memory = np.empty(PIECE_BYTES + BLOCK_BYTES, np.uint8)
    start = -memory.ctypes.data % BLOCK_BYTES
    piece = memory[start : start + PIECE_BYTES]
    filled = 0
    for buffer in buffers:
        rest = np.frombuffer(buffer, np.uint8)  # NumPy copies without the interpreter's lock
        if rest.size >= BLOCK_BYTES and not filled % BLOCK_BYTES and not rest.ctypes.data % BLOCK_BYTES:
            if filled:
                yield piece[:filled].data
            filled, whole = 0, rest.size - rest.size % BLOCK_BYTES
            for at in range(0, whole, ALIGNED_BYTES):
                yield rest[at : min(at + ALIGNED_BYTES, whole)].data
            rest = rest[whole:]
        while rest.size:
            some = rest[: PIECE_BYTES - filled]
            piece[filled : filled + some.size] = some
            filled, rest = filled + some.size, rest[some.size :]
            if filled == PIECE_BYTES:
                yield piece.data
                filled = 0
    if filled:
        yield piece[:filled].data


@lru_cache(8)
def suits(folder: Path) -> bool:
    """Whether direct writes to a folder are worth it: over a network each would wait for an answer."""
    return not is_remote(file_system_of(folder))


def ask_for_direct(descriptor: int) -> bool:
    """Whether writes to the file go past the cache from now on."""
    return _set_direct(descriptor, True)


def write_piece(descriptor: int, piece: memoryview) -> None:
    """Write every byte of an aligned piece; whatever cannot go past the cache goes through it, from then on."""
    whole = len(piece) - len(piece) % BLOCK_BYTES
    _write(descriptor, piece[:whole])
    if whole < len(piece):  # the end of the file
        _set_direct(descriptor, False)
        _write(descriptor, piece[whole:])


def _write(descriptor: int, view: memoryview) -> None:
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            # Some filesystems refuse only now; and behind a write cut short nothing is aligned any more.
            if error.errno != errno.EINVAL or not _set_direct(descriptor, False):
                raise


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Whether that changed anything."""
    flag = getattr(os, "O_DIRECT", 0)
    if not flag:
        return False
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if bool(flags & flag) == is_direct:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags ^ flag)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False  # this filesystem has no such writes
    return True
