"""Tiny sources and stores, made in milliseconds, and ways to damage and to forge them."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from xxhash import xxh3_128

from flatout.source import hash_key
from flatout.store import DataPreprocessor, RunStats, StoreReader, plan
from flatout.store.metadata import ROOT, ShardMeta
from flatout.store.shard_reader import ShardReader
from flatout.store.shard_writer import ShardWriter
from flatout.types import FieldSpec

OLD_S = 1_600_000_000
"""A modification time long past: such a file is recognised by its time alone."""

FIELDS = {
    "image": {"kind": "array"},
    "series": {"kind": "sequence"},
    "label": {"kind": "label"},
    "text": {"kind": "text"},
}


@dataclass
class Source:
    """A folder of npy files with a manifest, and the config that makes a store of them."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    num_written: int = 0

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.csv"

    @classmethod
    def of(cls, folder: Path, num_rows: int) -> Source:
        """`num_rows` rows s00, s01, ... with an image, a ragged series, a label and a text each."""
        folder.mkdir(parents=True, exist_ok=True)
        source = cls(folder)
        for number in range(num_rows):
            source.add(number)
        source.save()
        return source

    def add(self, number: int) -> None:
        """A row, with files that depend on its number alone."""
        name = f"s{number:02d}"
        self.put(number)
        self.rows.append(
            {
                "id": name,
                "image": f"{name}.npy",
                "series": f"{name}-series.npy",
                "label": ("cat", "dog", "eel")[number % 3],
                "text": "né" * (1 + number % 4),
            }
        )

    def put(self, number: int, seed: int | None = None) -> None:
        """The row's files; another seed, other values and another time."""
        generator = np.random.default_rng(number if seed is None else seed)
        image = generator.normal(size=(4, 5)).astype(np.float32)
        series = generator.normal(size=(1 + number % 5, 2)).astype(np.float32)
        for name, array in ((f"s{number:02d}.npy", image), (f"s{number:02d}-series.npy", series)):
            np.save(self.folder / name, array)
            self.num_written += 1
            os.utime(self.folder / name, (OLD_S, OLD_S + self.num_written))

    def save(self) -> None:
        """Write the manifest."""
        with open(self.manifest, "w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "image", "series", "label", "text"])
            writer.writeheader()
            writer.writerows(self.rows)

    def config(self, **settings: Any) -> dict[str, Any]:
        """The config of a store of these files, made in this process."""
        return {
            "manifest": str(self.manifest),
            "preprocessed_data_dir": str(self.store),
            "num_workers": 0,
            "fields": FIELDS,
            **settings,
        }

    def prepare(self, force: bool = False, **settings: Any) -> RunStats:
        """Bring the store up to date."""
        return DataPreprocessor(self.config(**settings)).run(force)


@pytest.fixture
def few_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go into three shards; by default so few would be one."""
    cut_into_three(monkeypatch)


def cut_into_three(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "MIN_SHARDS", 3)
    patch.setattr(plan, "MIN_SHARD_BYTES", 1)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Twelve rows, nothing prepared yet."""
    return Source.of(tmp_path / "source", 12)


@pytest.fixture(scope="session")
def _prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Source.of(tmp_path_factory.mktemp("prepared") / "source", 12)
    with pytest.MonkeyPatch.context() as patch:
        cut_into_three(patch)
        source.prepare()
    return source.folder


@pytest.fixture
def prepared(_prepared: Path, tmp_path: Path, few_shards: None) -> Source:
    """A copy, to be damaged at will, of twelve rows and their store of three shards.

    The root still names the manifest that it was made from; `config` names the copy.
    """
    folder = tmp_path / "prepared"
    shutil.copytree(_prepared, folder)
    made = Source.of(tmp_path / "unused", 12)
    return Source(folder, made.rows, made.num_written)


@pytest.fixture
def stored(_prepared: Path) -> Path:
    """The store of twelve rows itself, to be read only."""
    return _prepared / "store"


@pytest.fixture
def make_source() -> Callable[[Path, int], Source]:
    return Source.of


Arrays = Mapping[str, Any]


@pytest.fixture
def write_shard(tmp_path: Path) -> Callable[..., ShardReader]:
    """(fields, samples, keys=None, number=0) -> a reader of the shard that holds them."""

    def write(
        fields: Sequence[FieldSpec],
        samples: Sequence[Arrays],
        keys: Sequence[str] | None = None,
        number: int = 0,
        folder: Path = tmp_path,
    ) -> ShardReader:
        writer = ShardWriter(fields)
        for key, arrays in zip(keys or [f"k{n}" for n in range(len(samples))], samples, strict=True):
            writer.append(writer.encode(key, hash_key(key), -1, arrays))
        meta = writer.write(folder, number)
        return ShardReader(folder / meta.file, meta, fields)

    return write


def flip_bit(path: Path, offset: int, bit: int = 0) -> None:
    """Change one bit of a file in place."""
    with open(path, "rb+") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.fixture(name="flip_bit")
def flip_bit_fixture() -> Callable[..., None]:
    return flip_bit


def seal_root(folder: Path, document: dict[str, Any]) -> None:
    """Write a root with a checksum that matches, by the format's own words."""
    document.pop("checksum", None)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = blake3(text.encode()).hexdigest()
    (folder / ROOT).write_text(json.dumps(document))


@pytest.fixture
def forge_root() -> Callable[[Path, Callable[[dict[str, Any]], Any]], None]:
    """(store, edit): change the root's document as a forger would, who knows how checksums are made."""

    def forge(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
        document = json.loads((folder / ROOT).read_text())
        edit(document)
        seal_root(folder, document)

    return forge


@pytest.fixture
def reseal_shard() -> Callable[..., None]:
    """(store, number, **changes): make the root vouch for a shard as it now is."""

    def reseal(folder: Path, number: int, **changes: Any) -> None:
        document = json.loads((folder / ROOT).read_text())
        entry = document["shards"][number]
        data = (folder / "shards" / entry["file"]).read_bytes()
        entry |= {"xxh3": xxh3_128(data).hexdigest(), "size": len(data), **changes}
        seal_root(folder, document)

    return reseal


@pytest.fixture
def shard_paths() -> Callable[[Path], list[Path]]:
    """(store) -> its shard files in the order of the root."""
    return lambda folder: [folder / "shards" / meta.file for meta in StoreReader(folder).meta.shards]


@pytest.fixture
def with_at() -> Callable[..., ShardMeta]:
    """(meta, at) -> the same shard with other places."""
    return lambda meta, at: ShardMeta(meta.file, meta.xxh3, meta.size, meta.rows, meta.crc, tuple(at))


@pytest.fixture
def all_bytes() -> Callable[[Path], dict[str, bytes]]:
    """(folder) -> bytes of every file below it, by relative path."""

    def read(folder: Path) -> dict[str, bytes]:
        files: Iterator[Path] = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read
