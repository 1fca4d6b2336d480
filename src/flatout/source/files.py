"""SourceFile: where a sample's raw bytes stand: a whole file, or a range of one (a tar member)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from flatout.errors import SampleError
from flatout.types import Limits


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source of bytes. `name` carries the suffix that picks the decoder."""

    path: Path
    name: str
    offset: int = 0
    size: int | None = None
    """Bytes of the range; None: the whole file."""

    @classmethod
    def whole(cls, path: Path) -> SourceFile:
        return cls(path=path, name=path.name)

    @property
    def suffix(self) -> str:
        """Lower-case suffix, `.nii.gz` and its like as one; "/" for a folder."""
        if self.size is None and self.path.is_dir():
            return "/"
        parts = self.name.lower().rsplit(".", 2)
        if len(parts) == 3 and parts[2] == "gz":
            return f".{parts[1]}.gz"
        return f".{parts[-1]}" if len(parts) > 1 else ""

    def read_bytes(self, limits: Limits) -> bytes:
        """The raw bytes, at most `limits.max_sample_bytes` of them."""
        try:
            with open(self.path, "rb") as file:
                size = self.size if self.size is not None else file.seek(0, 2)
                if size > limits.max_sample_bytes:
                    raise SampleError(
                        "find",
                        f"{self.name} has {size:,} bytes; max_sample_bytes is {limits.max_sample_bytes:,}",
                    )
                file.seek(self.offset)
                data = file.read(size)
        except OSError as error:
            raise SampleError("find", f"{self.path}: {error.strerror or error}") from error
        if len(data) < size:
            raise SampleError("find", f"{self.path}: got {len(data):,} of {size:,} bytes")
        return data


def hash_file(path: Path) -> str:
    """blake3 of a file, read in pieces of 1 MiB."""
    hasher = blake3(max_threads=1)
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()
