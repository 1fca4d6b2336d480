"""The root file `data_metadata.json`: what a store is. Swapped last, so a store is always whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from blake3 import blake3

from flatout.errors import StoreCorruptError, StoreError, StoreMissingError, StoreVersionError
from flatout.store import layout
from flatout.store.files import write_durable_text
from flatout.types import FieldSpec

FORMAT_VERSION = 1
IDENTITY = "xxh3-64"
"""What digests and fingerprints are hashed with. Builds before version 1 was settled had no such line."""
ROOT = "data_metadata.json"
SHARD_FOLDER = "shards"
JOURNAL = "journal.jsonl"
"""There while a prepare is under way, or was cut off."""
MAX_ROOT_BYTES = 1 << 30
KEY_HASH_BYTES = 8
"""What every row takes at least in its shard: nobody makes room for more rows than a file can hold."""

HEAD_ROW_BYTES = 64
"""No table has more bytes a row, but the keys, and those are not the last."""

SHARD_NAME = re.compile(r"[0-9]{6,}-[0-9a-f]{16}\.h5")
INDEX_NAME = re.compile(r"index-[0-9a-f]{16}\.parquet")


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """One immutable shard file: its identity and the place of each dataset."""

    file: str
    xxh3: str
    size: int
    rows: int
    crc: int
    """crc32c over the small tables."""
    at: tuple[int | None, ...]
    """File offset of each dataset, in the order of `layout.dataset_paths`; None: empty or chunked."""

    def head_bytes(self, fields: Sequence[FieldSpec]) -> int:
        """Bytes from the file's start that hold what stands before the samples: HDF5's own and the tables."""
        num_tables = len(layout.table_dtypes(fields))
        last = max((at for at in self.at[:num_tables] if at is not None), default=0)
        return min(last + HEAD_ROW_BYTES * (self.rows + 1), self.size)


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """Everything a reader needs before it opens an index or a shard."""

    num_samples: int
    splits: tuple[str, ...]
    """Split names in the order of their numbers in the index."""
    fields: tuple[FieldSpec, ...]
    index: str
    index_blake3: str
    content_hash: str
    """Equal for stores with equal samples, however they were made."""
    shards: tuple[ShardMeta, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    """What the samples were made with: parameters, code, versions."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The config parts that made the store, so that repair and update find the sources."""
    files: Mapping[str, str] = field(default_factory=dict)
    """blake3 of the companion files (view, quarantine, stats)."""
    num_bad: int = 0


def is_store(folder: Path) -> bool:
    """Whether a store's root stands here."""
    return (folder / ROOT).is_file()


def is_replaced(folder: Path, meta: StoreMeta) -> bool:
    """Whether another root stands here now than this one, or none that can be read."""
    try:
        return load_metadata(folder) != meta
    except (StoreError, OSError):
        return True


def save_metadata(folder: Path, meta: StoreMeta) -> None:
    """Swap the root: from here on readers see this version."""
    write_durable_text(folder / ROOT, to_text(meta))


def to_text(meta: StoreMeta) -> str:
    """The root's text: head of the document indented, one line a shard, a checksum of all of it."""
    document = asdict(meta)
    shards = document.pop("shards")
    document = {"format": "flatout-store", "version": FORMAT_VERSION, "identity": IDENTITY, **document}
    document["checksum"] = _checksum(document, shards)
    head = json.dumps(document, indent=1, sort_keys=True)[:-2]
    lines = ",\n  ".join(json.dumps(shard, separators=(",", ":")) for shard in shards)
    return f'{head},\n "shards": [\n  {lines}\n ]\n}}\n'


def load_metadata(folder: Path) -> StoreMeta:
    """Read and check the root.

    Raises:
        StoreMissingError: there is none. StoreVersionError: made by a newer release, or an early build.
        StoreCorruptError: it is damaged. StoreError: the system does not let it be read.
    """
    path = folder / ROOT
    document = _read_document(folder, path)
    version = document.get("version")
    if version != FORMAT_VERSION:
        raise StoreVersionError(
            f"{path} is format {version}; this release reads {FORMAT_VERSION}. Upgrade flatout, or "
            "rebuild the store with 'flatout prepare --force'"
        )
    return _from_document(path, document)


def load_fields(folder: Path) -> tuple[FieldSpec, ...]:
    """The fields that the root names, whatever else it says; none if they cannot be told."""
    path = folder / ROOT
    try:
        document = _read_document(folder, path)
        _check_document(path, document)
        return tuple(field_spec(spec) for spec in document["fields"])
    except (StoreError, KeyError, TypeError, AttributeError, ValueError):
        return ()


def _read_document(folder: Path, path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_ROOT_BYTES:
            raise StoreCorruptError(f"{path} has over {MAX_ROOT_BYTES:,} bytes: not a flatout store")
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if not folder.is_dir():
            kind = "is a file" if folder.exists() else "does not exist"
            raise StoreMissingError(
                f"{folder} {kind}; a store is a folder, made by 'flatout prepare'"
            ) from None
        raise StoreMissingError(f"{folder} has no {ROOT}: {why_no_root(folder)}") from None
    except OSError as error:
        raise StoreError(
            f"{path}: {error.strerror or error}. The store may be whole: mend what keeps its files from being "
            "read (their permissions, the disk or the mount), then run the same command again"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"not valid JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != "flatout-store":
        raise _damaged(path, "not a flatout store's root")
    return document


def has_index(folder: Path) -> bool:
    """Whether a folder without a root had one, or was about to have its first."""
    return any(INDEX_NAME.fullmatch(entry.name) for entry in folder.iterdir())


def why_no_root(folder: Path) -> str:
    """What a folder without a root is, by what else it has."""
    if has_index(folder) and (folder / JOURNAL).exists():
        return (
            "its first prepare was cut off at its very end, and the same 'flatout prepare' continues it; or "
            "this file is lost, and a backup has it"
        )
    if has_index(folder):
        return (
            "the rest of a store is there, but this file is lost. Restore it from a backup; else "
            "'flatout prepare' with the config that made the store makes every sample again"
        )
    return (
        "it is not a store, or its first prepare did not finish (run the same 'flatout prepare' again to "
        "continue it)"
    )


def _check_document(path: Path, document: dict[str, Any]) -> Any:
    """Take checksum and shards out of a root; the shards."""
    checksum, shards = document.pop("checksum"), document.pop("shards")
    if checksum != _checksum(document, shards):
        raise _damaged(path, "its checksum does not match")
    return shards


def _from_document(path: Path, document: dict[str, Any]) -> StoreMeta:
    try:
        shards = _check_document(path, document)
        if "identity" not in document:
            raise StoreVersionError(
                f"{path} was made by an early build, before rows and samples were hashed with XXH3; "
                "rebuild the store with 'flatout prepare --force'"
            )
        if document["identity"] != IDENTITY:
            raise StoreVersionError(
                f"{path} has samples hashed with {document['identity']}; this release reads {IDENTITY}. "
                "Upgrade flatout"
            )
        known = {f.name for f in fields(StoreMeta)}
        parts = {name: value for name, value in document.items() if name in known}
        parts["fields"] = tuple(field_spec(spec) for spec in parts["fields"])
        parts["splits"] = tuple(parts["splits"])
        parts["shards"] = tuple(shard_meta(shard) for shard in shards)
        check_datasets(parts["shards"], parts["fields"])
        meta = StoreMeta(**parts)
        _check_sense(meta)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    return meta


def shard_meta(document: Mapping[str, Any]) -> ShardMeta:
    """A ShardMeta from its JSON form: of a root, a journal or a log, none of which may be believed blindly.

    Raises:
        ValueError, TypeError, KeyError: it is none, names a file outside the store, or more rows than fit.
    """
    shard = ShardMeta(**{**document, "at": tuple(document["at"])})
    numbers = (shard.size, shard.rows, shard.crc, *(at for at in shard.at if at is not None))
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"shard {shard.file}: sizes and places are whole numbers")
    if not SHARD_NAME.fullmatch(shard.file):
        raise _foreign(shard.file)
    if shard.rows * KEY_HASH_BYTES > shard.size:
        raise ValueError(f"shard {shard.file} cannot hold {shard.rows:,} rows in {shard.size:,} bytes")
    return shard


def field_spec(document: dict[str, Any]) -> FieldSpec:
    """A FieldSpec from its JSON form.

    Raises:
        ValueError, TypeError, AttributeError: it is none, or one that no shard can hold.
    """
    parts: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in document.items()}
    spec = FieldSpec(**parts)
    layout.check_spec(spec)
    return spec


def check_datasets(shards: Iterable[ShardMeta], fields: Sequence[FieldSpec]) -> None:
    """Each shard has a place for every dataset of these fields.

    Raises:
        ValueError: one has not.
    """
    num_datasets = len(layout.dataset_paths(fields))
    if any(len(shard.at) != num_datasets for shard in shards):
        raise ValueError(f"a shard does not have the {num_datasets} datasets of its fields")


def _check_sense(meta: StoreMeta) -> None:
    """A root may only name files inside its own store, and samples that its shards hold."""
    if not INDEX_NAME.fullmatch(meta.index):
        raise _foreign(meta.index)
    if type(meta.num_samples) is not int or not 0 <= meta.num_samples <= sum(s.rows for s in meta.shards):
        raise ValueError(f"{meta.num_samples} samples in shards that do not hold them")


def _foreign(name: str) -> ValueError:
    return ValueError(f"it names {name!r}, which is no file of a store")


def _checksum(document: Mapping[str, Any], shards: Any) -> str:
    text = json.dumps({**document, "shards": shards}, sort_keys=True, separators=(",", ":"))
    return blake3(text.encode()).hexdigest()


def _damaged(path: Path, reason: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"{path} is damaged: {reason}. Restore it from a backup, or rebuild with 'flatout prepare --force'"
    )
