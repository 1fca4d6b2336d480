"""SourceFile: where a sample's raw bytes stand: a whole file, or a range of one (a tar member)."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from flatout.errors import SampleError
from flatout.types import Limits

FileState = tuple[int, int]
"""Size and time of a file. What is known by its place in one is known as long as they stay."""

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source of bytes. `name` carries the suffix that picks the decoder."""

    place: str | Path
    """Where it stands; see `path`. Text is kept as it is: a Path of it costs 12 us, and few ask for one."""
    name: str
    offset: int = 0
    size: int | None = None
    """Bytes of the range; None: the whole file."""
    state: os.stat_result | None = field(default=None, compare=False)
    """Of a whole file or folder when it was found; None: nobody has looked yet."""
    is_unchanged: bool = field(default=False, compare=False)
    """Whether it had the same size and time when all of it was read. If not, nobody knows yet."""
    indexed: FileState | None = field(default=None, compare=False)
    """The tar's when its members were looked up; None: this is no member, or nobody knows."""
    missing: str = ""
    """Why there are no such bytes, where that was known before anyone looked: the place never opens then."""

    @classmethod
    def whole(cls, path: Path) -> SourceFile:
        return cls(path, path.name)

    @classmethod
    def found(cls, path: str, state: os.stat_result) -> SourceFile:
        """A whole file or folder that has been looked at."""
        return cls(path, os.path.basename(path), 0, None, state)  # noqa: PTH119

    @classmethod
    def absent(cls, archive: Path, name: str, missing: str) -> SourceFile:
        """A member that an archive does not have: to look at it or to read it fails with the reason."""
        # A path below a regular file never opens, whatever stands in the folder.
        return cls(archive / "no member", name, 0, 0, missing=missing)

    @property
    def path(self) -> Path:
        """The file or folder, or the tar around it."""
        return Path(self.place).parent if self.missing else Path(self.place)

    @property
    def suffix(self) -> str:
        """Lower-case suffix, `.nii.gz` and its like as one; "/" for a folder."""
        if self.size is None and self._is_folder():
            return "/"
        parts = self.name.lower().rsplit(".", 2)
        if len(parts) == 3 and parts[2] == "gz":
            return f".{parts[1]}.gz"
        return f".{parts[-1]}" if len(parts) > 1 else ""

    def _is_folder(self) -> bool:
        return self.path.is_dir() if self.state is None else stat.S_ISDIR(self.state.st_mode)

    def stat(self) -> os.stat_result:
        """The state of the file, or of the tar around it, now.

        Raises:
            SampleError: it is not there, or the tar is another: other members may stand at the same places.
        """
        try:
            state = os.stat(self.place)  # noqa: PTH116
        except OSError as error:
            raise self._not_opened(error) from error
        self._check_indexed(state)
        return state

    def read_bytes(self, limits: Limits) -> bytes:
        """The raw bytes, at most `limits.max_sample_bytes` of them.

        Raises:
            SampleError: as for `stat`; more bytes than that, or fewer than there should be.
        """
        try:
            # System calls as they are: 8 us for a file of 16 KB, 12 us through a file object.
            descriptor = os.open(self.place, _READ)
            try:
                found = self.state if self.state is not None else os.fstat(descriptor)
                self._check_indexed(found)  # of what is open: the file may be another since somebody looked
                size = self.size if self.size is not None else found.st_size
                if size > limits.max_sample_bytes:
                    raise SampleError(
                        "find",
                        f"{self.name} has {size:,} bytes; max_sample_bytes is {limits.max_sample_bytes:,}",
                    )
                if self.offset:
                    os.lseek(descriptor, self.offset, os.SEEK_SET)
                data = _read(descriptor, size)
                if self.state is not None:  # looked at afterwards instead of before: it costs nothing more
                    object.__setattr__(self, "is_unchanged", is_same_state(found, os.fstat(descriptor)))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._not_opened(error) from error
        if len(data) < size:
            raise SampleError("find", f"{self.path}: got {len(data):,} of {size:,} bytes")
        return data

    def _check_indexed(self, state: os.stat_result) -> None:
        if self.indexed not in (None, (state.st_size, state.st_mtime_ns)):
            raise SampleError(
                "find", f"{self.path} was changed after its members were found; run prepare again"
            )

    def _not_opened(self, error: OSError) -> SampleError:
        return SampleError("find", self.missing or f"{self.path}: {error.strerror or error}")


def file_state(path: Path) -> FileState:
    """What a file is now."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def is_same_state(before: os.stat_result, after: os.stat_result) -> bool:
    """Whether a file has kept its size and time."""
    return before.st_size == after.st_size and before.st_mtime_ns == after.st_mtime_ns


def _read(descriptor: int, size: int) -> bytes:
    """The next `size` bytes, fewer at the end of the file; one call gives 2 GiB at the most."""
    data = os.read(descriptor, size)
    if len(data) == size:
        return data
    pieces = [data]
    missing = size - len(data)
    while missing and pieces[-1]:
        pieces.append(os.read(descriptor, missing))
        missing -= len(pieces[-1])
    return b"".join(pieces)


def hash_file(path: Path, hasher: Any = None) -> str:
    """blake3 of a file, or what another hasher makes of it; read in pieces of 1 MiB."""
    hasher = hasher or blake3(max_threads=1)
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(memoryview(buffer)[:count])
    digest: str = hasher.hexdigest()
    return digest
