"""Format version 1, byte by byte: stores written once and kept in this folder must stay readable for ever.

`plain` pins every byte that a writer makes. `packed` holds compressed fields, whose bytes may differ between
releases of zstd and zlib: it pins that they are read. Run this file to write both anew; that is right only
while version 1 has not been released, or for a new version beside this one.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from flatout.source import hash_file, hash_key
from flatout.store import StoreReader, verify
from flatout.store.checks import content_hash
from flatout.store.index import index_schema, write_index
from flatout.store.layout import COMPRESSIONS, ENCODINGS, table_dtypes
from flatout.store.metadata import ShardMeta, StoreMeta, save_metadata
from flatout.store.samples import samples_of_shards
from flatout.store.shard_writer import ShardWriter
from flatout.store.view import write_view
from flatout.types import FieldSpec

HERE = Path(__file__).parent
F4, F8 = np.float32, np.float64

PLAIN = (
    FieldSpec("image", "image", "float32", (1, 2, 3)),
    FieldSpec("brain", "array", "float32", (3,), encoding="bfloat16"),
    FieldSpec("byte", "array", "float32", (3,), encoding="uint8"),
    FieldSpec("short", "signal", "float32", (1, None), encoding="int16", range=(-1.0, 1.0)),
    FieldSpec("series", "sequence", "float64", (None, 2)),
    FieldSpec("patch", "image", "uint8", (1, None, None)),
    FieldSpec("text", "text", "uint8", (None,)),
    FieldSpec("nothing", "array", "float32", (0, 2)),
    FieldSpec("label", "label", "int64", (), classes=("cat", "dog")),
)
PACKED = (
    FieldSpec("volume", "volume", "int16", (1, 2, 2, 2), compression="zstd"),
    FieldSpec("signal", "signal", "float32", (1, None), compression="gzip"),
    FieldSpec("mask", "mask", "uint8", (1, None, None), compression="zstd"),
    FieldSpec("dose", "array", "float32", (4,), encoding="uint8", compression="gzip"),
    FieldSpec("flag", "scalar", "bool", ()),
    FieldSpec("wave", "array", "complex64", (2,)),
    FieldSpec("half", "array", "float32", (3,), encoding="float16"),
)
KEYS = ("a", "größe", "long/path to.wav#0002")
PARTS = (-1, -1, 2)

PLAIN_SAMPLES: list[dict[str, Any]] = [
    {
        "image": np.array([[[0, 1, 2], [3, 4, 5]]], F4),
        "brain": np.array([0, 1.00390625, -3e38], F4),
        "byte": np.array([-1, 0, 1], F4),
        "short": np.array([[-1, 0, 0.5, 1]], F4),
        "series": np.array([[1, 2], [3, 4], [5, 6]], F8),
        "patch": np.array([[[1, 2], [3, 4]]], np.uint8),
        "text": np.frombuffer("grün".encode(), np.uint8),
        "nothing": np.zeros((0, 2), F4),
        "label": np.array(1),
    },
    {
        "image": np.array([[[-0.5, 1e-30, 1e30], [0.1, 0.2, 0.3]]], F4),
        "brain": np.array([0.1, -2, 3], F4),
        "byte": np.array([7, 7, 7], F4),
        "short": np.zeros((1, 0), F4),
        "series": np.zeros((0, 2), F8),
        "patch": np.zeros((1, 0, 3), np.uint8),
        "text": np.zeros(0, np.uint8),
        "nothing": np.zeros((0, 2), F4),
        "label": np.array(0),
    },
    {
        "image": np.array([[[9, 8, 7], [6, 5, 4]]], F4),
        "brain": np.array([-1, -2, -3], F4),
        "byte": np.array([0, 100, 255], F4),
        "short": np.array([[0.25]], F4),
        "series": np.array([[7, 8]], F8),
        "patch": np.array([[[5, 6, 7]]], np.uint8),
        "text": np.frombuffer(b"plain", np.uint8),
        "nothing": np.zeros((0, 2), F4),
        "label": np.array(1),
    },
]
PACKED_SAMPLES: list[dict[str, Any]] = [
    {
        "volume": np.arange(8, dtype=np.int16).reshape(1, 2, 2, 2) - 4 * row,
        "signal": np.linspace(0, 1, 5 * row, dtype=F4).reshape(1, -1),
        "mask": np.full((1, 1 + row, 2), row, np.uint8),
        "dose": np.array([0, 1, 2, 255], F4) * (row + 1),
        "flag": np.array(row == 1),
        "wave": np.array([1 + 2j, -3j * row], np.complex64),
        "half": np.array([row, 0.1, 65504], F4),
    }
    for row in range(3)
]
STORES = {"plain": (PLAIN, PLAIN_SAMPLES), "packed": (PACKED, PACKED_SAMPLES)}


def write_shard(folder: Path, name: str) -> ShardMeta:
    fields, samples = STORES[name]
    writer = ShardWriter(fields)
    for key, part, arrays in zip(KEYS, PARTS, samples, strict=True):
        writer.append(writer.encode(key, hash_key(key), part, arrays))
    folder.mkdir(parents=True, exist_ok=True)
    return writer.write(folder, 0)


def describe(path: Path) -> dict[str, Any]:
    """What stands in a shard: dtype, shape and place of every dataset, and the root's attributes."""
    found: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            chunks = None if item.chunks is None else list(item.chunks)
            at = None if chunks else item.id.get_offset()
            found[name] = {"dtype": item.dtype.str, "shape": list(item.shape), "chunks": chunks, "at": at}

    with h5py.File(path, "r") as file:
        file.visititems(note)
        attributes = {
            name: value.item() if hasattr(value, "item") else value for name, value in file.attrs.items()
        }
    return {"attributes": attributes, "datasets": found}


def write_store(folder: Path, name: str) -> None:
    """A whole store around the shard, without a prepare: nothing in it tells when or where."""
    fields, _ = STORES[name]
    shard = write_shard(folder / "shards", name)
    samples = samples_of_shards(folder, [shard], fields)
    records: dict[str, Any] = {
        "split": [0, 1, 0],
        "group": samples["key_hash"],
        "fingerprint": [1, 2, 3],
        "by_content": [False, False, True],
        "size": [10, 20, 30],
        "mtime_ns": [1, 2, 3],
        "path": [f"{key}.npy" for key in KEYS],
    }
    for column, values in records.items():
        samples = samples.append_column(column, values if column == "group" else pa.array(values))
    schema = index_schema(fields)
    samples = samples.select(schema.names).cast(schema)
    index, digest = write_index(folder, samples)
    write_view(folder, fields, [shard], samples, ["train", "val"])
    (folder / "quarantine.jsonl").write_text("")
    (folder / "preprocessing_stats.json").write_text("{}\n")
    companions = ("preprocessed_data.h5", "quarantine.jsonl", "preprocessing_stats.json")
    meta = StoreMeta(
        num_samples=3,
        splits=("train", "val"),
        fields=fields,
        index=index,
        index_blake3=digest,
        content_hash=content_hash(samples["key"].to_pylist(), samples["digest"].to_numpy()),
        shards=(shard,),
        files={companion: hash_file(folder / companion) for companion in companions},
    )
    save_metadata(folder, meta)
    (folder / "layout.json").write_text(json.dumps(describe(folder / "shards" / shard.file), indent=1) + "\n")


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def golden_shard(name: str) -> Path:
    (path,) = (HERE / name / "shards").iterdir()
    return path


def root(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((HERE / name / "data_metadata.json").read_text())
    return document


def test_a_writer_makes_the_golden_bytes(tmp_path: Path) -> None:
    meta = write_shard(tmp_path, "plain")
    golden = golden_shard("plain")
    assert golden.stat().st_size < 100_000
    assert (tmp_path / meta.file).read_bytes() == golden.read_bytes()
    assert meta.file == golden.name


def test_the_roots_entry_of_a_shard(tmp_path: Path) -> None:
    meta = write_shard(tmp_path, "plain")
    (entry,) = root("plain")["shards"]
    assert list(entry) == ["file", "xxh3", "size", "rows", "crc", "at"]
    assert {part: getattr(meta, part) for part in entry} == {**entry, "at": tuple(entry["at"])}


def test_the_layout_of_a_shard(tmp_path: Path, name: str) -> None:
    meta = write_shard(tmp_path, name)
    assert describe(tmp_path / meta.file) == json.loads((HERE / name / "layout.json").read_text())


def test_the_roots_own_keys(name: str) -> None:
    assert set(root(name)) == {
        "checksum",
        "content_hash",
        "fields",
        "files",
        "fingerprint",
        "format",
        "identity",
        "index",
        "index_blake3",
        "num_bad",
        "num_samples",
        "settings",
        "shards",
        "splits",
        "version",
    }
    assert [root(name)[key] for key in ("format", "version", "identity")] == ["flatout-store", 1, "xxh3-64"]


def test_the_golden_store_is_read(name: str) -> None:
    fields, samples = STORES[name]
    store = StoreReader(HERE / name)
    assert store.keys() == list(KEYS)
    assert store.meta.fields == fields
    assert store.positions("val").tolist() == [1]
    tolerance = {"half": 1e-4, "brain": 1e-2, "byte": 0.51, "short": 2e-5, "dose": 1.6}
    for position, expected in enumerate(samples):
        found = store.read(position)
        for field, array in expected.items():
            assert (found[field].dtype, found[field].shape) == (array.dtype, array.shape)
            if field in tolerance:
                np.testing.assert_allclose(found[field], array, rtol=tolerance[field], atol=tolerance[field])
            else:
                np.testing.assert_array_equal(found[field], array)


def test_the_golden_store_is_verified(name: str) -> None:
    assert verify(HERE / name).damage == ()


def test_restored_values_to_the_last_bit() -> None:
    first = StoreReader(HERE / "plain").read(0)
    assert first["brain"].view(np.uint32).tolist() == [0, 0x3F800000, 0xFF620000]
    assert first["byte"].tolist() == [-1.0, -0.0039215087890625, 1.0]  # codes 0, 127, 255 times 2 / 255, less 1
    assert first["short"].tolist() == [[-1.0, 1.52587890625e-05, 0.49999237060546875, 1.0]]
    assert StoreReader(HERE / "packed").read(0)["half"].tolist() == [0, 0.0999755859375, 65504]


def test_the_page_names_every_part(name: str) -> None:
    page = (HERE.parents[2] / "docs" / "format.md").read_text()
    fields, _ = STORES[name]
    columns = map(_general, index_schema(fields).names)
    tables = [
        re.sub("/[^/]+$", "/FIELD", path) if path.count("/") == 2 else path for path in table_dtypes(fields)
    ]
    tables = [re.sub("^[^/]+/(offsets|shapes)$", r"FIELD/\1", path) for path in tables]
    keys = [*root(name), *root(name)["fields"][0], *root(name)["shards"][0]]
    for word in (*columns, *tables, *keys, *ENCODINGS, *COMPRESSIONS):
        assert f"`{word}`" in page, word
    lines = [line for line in page[page.index("## The index") :].splitlines() if line.startswith("|")]
    for column in index_schema(fields):
        (line,) = [line for line in lines if f"`{_general(column.name)}`" in line.split(" | ")[0]]
        assert line.split(" | ")[1] == str(column.type)


def _general(column: str) -> str:
    return "length_FIELD" if column.startswith("length_") else column


if __name__ == "__main__":
    for store_name in STORES:
        shutil.rmtree(HERE / store_name, ignore_errors=True)
        write_store(HERE / store_name, store_name)
