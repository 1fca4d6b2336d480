"""Checksums: crc32c for samples and tables, xxh3 for shards and single identities, blake3 for other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from blake3 import blake3
from xxhash import xxh3_128

from flatout.source import hash_file, hash_text
from flatout.types import Array

BLOCK_BYTES = 65536
BLOCK_ROWS = 65536
"""Samples whose lines stand in memory at one time."""
SMALL_SAMPLE_BYTES = 4096
"""Samples smaller than this share one crc per block: 4 bytes each would cost more than they protect."""


def crc32c(array: Array) -> int:
    """crc32c of an array's bytes (22 GB/s here; ndarrays are read in place, other buffers are copied)."""
    return int(google_crc32c.value(np.ascontiguousarray(array)))


def row_crcs(block: Array) -> list[int]:
    """crc32c of each row of a C-contiguous array."""
    if block.ndim == 1:  # of numbers, which are no arrays
        return [crc32c(number) for number in block]
    return list(map(google_crc32c.value, block))


def crc32c_at(array: Array, positions: Array) -> int:
    """crc32c of `array[positions]`, of which a block at a time is copied.

    Ten million numbers of 8 bytes at once took 0.33 s, nearly all of it page faults; so they take 0.03.
    """
    block, crc = np.empty(BLOCK_ROWS, array.dtype), 0
    for start in range(0, len(positions), BLOCK_ROWS):
        some = positions[start : start + BLOCK_ROWS]
        crc = int(google_crc32c.extend(crc, array.take(some, out=block[: len(some)])))
    return crc


def uses_blocks(num_rows: int, num_bytes: int) -> bool:
    """Whether a field's crcs are per block: its samples have under 4 KiB on average."""
    return num_bytes < SMALL_SAMPLE_BYTES * num_rows


def block_crcs(parts: Iterable[Array]) -> Array:
    """One crc for each 64 KiB of the parts' bytes on end; no copy of the whole is made."""
    crcs: list[int] = []
    rest = np.empty(0, np.uint8)
    for part in parts:
        flat = np.concatenate([rest, _bytes_of(part)]) if rest.size else _bytes_of(part)
        whole = flat.size - flat.size % BLOCK_BYTES
        crcs += [crc32c(flat[at : at + BLOCK_BYTES]) for at in range(0, whole, BLOCK_BYTES)]
        rest = flat[whole:].copy()  # whoever gives the parts may use their memory again
    return np.array([*crcs, *([crc32c(rest)] if rest.size else [])], dtype=np.uint32)


def _bytes_of(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def tables_crc(tables: Iterable[Array]) -> int:
    """One crc over a shard's small tables, in layout order."""
    crc = 0
    for table in tables:
        if table.size:
            crc = google_crc32c.extend(crc, np.ascontiguousarray(table))
    return int(crc)


def shard_hasher() -> xxh3_128:
    """What shards are hashed with: 128 bits find damage, whether or not somebody could forge them.

    200 KB that are in no cache take 7 us, BLAKE3 46: half of all that safety cost a prepare of volumes.
    """
    return xxh3_128()


def hash_shard(path: Path) -> str:
    """The hash of a shard's file."""
    return hash_file(path, shard_hasher())


def sample_digest(parts: Mapping[str, str]) -> int:
    """64-bit identity of a sample's content from `dtype,shape,crc` of each field as it is stored."""
    return text_digest([f"{name},{parts[name]}" for name in sorted(parts)])


def text_digest(parts: Iterable[str]) -> int:
    """The same from `field,dtype,shape,crc` of each field, in order of name."""
    return hash_text(";".join(parts))


def content_hash(keys: Any, digests: Array) -> str:
    """blake3 over sorted (key, digest): equal for equal samples, however they lie in shards.

    Args:
        keys: texts, best as an Arrow column: 10 million take 1 s if they are in order, else 9 s.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(list(keys), pa.large_string())
    table = pa.table({"key": column.cast(pa.large_string()), "digest": pa.array(digests, pa.uint64())})
    texts = table["key"]
    # UTF-8 in order of its bytes is text in order of its characters.
    if not pc.all(pc.less_equal(texts[:-1], texts[1:])).as_py():
        table = table.take(pc.sort_indices(texts))
    hasher = blake3()
    for batch in table.to_batches(max_chunksize=BLOCK_ROWS):
        hasher.update(_lines(batch["key"], batch["digest"].cast(pa.large_string())))
    return hasher.hexdigest()


def _lines(keys: Any, digests: Any) -> bytes:
    """`key NUL digest newline` of each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nul, newline, nothing = (pa.scalar(text, pa.large_string()) for text in ("\0", "\n", ""))
    lines = pc.binary_join_element_wise(pc.binary_join_element_wise(keys, digests, nul), nothing, newline)
    _, offsets, data = lines.buffers()
    return bytes(data[: np.frombuffer(offsets, np.int64)[len(lines)]])
