"""Every export holds exactly the store's samples, read back with the format's own library."""

from __future__ import annotations

import errno
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from flatout.errors import ConfigError, StoreError
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.export import FORMATS, export_store


class Items:
    """Twelve items of every form a field can have."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        return {
            "image": random.random((2, 3), np.float32),
            "series": random.integers(-9, 9, (at % 4 + 1, 2)).astype(np.int16),
            "label": at % 3 - 1,
            "text": f"item {at} \u00e9",
        }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder = tmp_path_factory.mktemp("export") / "store"
    fields = {"series": {"kind": "transform", "ragged": True}, "text": {"kind": "text"}}
    DataPreprocessor.from_dataset(Items(), folder, num_workers=0, fields=fields).run()
    return StoreReader(folder)


def export(store: StoreReader, to: str, tmp_path: Path) -> Path:
    output = tmp_path / to
    assert export_store(store.folder, to, output) == len(store)
    return output


def same(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), wanted)


def test_hdf5(store: StoreReader, tmp_path: Path) -> None:
    with h5py.File(export(store, "hdf5", tmp_path)) as file:
        for at, key in enumerate(store.keys()):
            sample = store.read(at)
            assert file["key"][at].decode() == key
            same(file["image"][at], sample["image"])
            same(file["label"][at], sample["label"])
            for name in ("series", "text"):
                low, high = file[name]["offsets"][at : at + 2]
                same(file[name]["values"][low:high].reshape(file[name]["shapes"][at]), sample[name])


def test_tar_has_every_sample_once_in_its_split(store: StoreReader, tmp_path: Path) -> None:
    folder = export(store, "tar", tmp_path)
    found = {}
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as tar:
            for member in tar.getmembers():
                data = tar.extractfile(member)
                assert data is not None
                found[member.name] = (path.name.partition("-")[0], data.read())
    for at, key in enumerate(store.keys()):
        split = store.meta.splits[store.numbers["split"][at]]
        assert found.pop(f"{at:09d}.key.txt") == (split, key.encode())
        for name, array in store.read(at).items():
            where, data = found.pop(f"{at:09d}.{name}.npy")
            assert where == split
            same(np.load(io.BytesIO(data)), array)
    assert not found


def test_parquet(store: StoreReader, tmp_path: Path) -> None:
    rows = pq.read_table(export(store, "parquet", tmp_path)).to_pylist()
    for at, row in enumerate(rows):
        sample = store.read(at)
        assert row["text"] == sample["text"].tobytes().decode()
        assert row["label"] == sample["label"]
        same(np.reshape(row["image"], row["image_shape"]), sample["image"])
        same(np.reshape(row["series"], row["series_shape"]), sample["series"])


def test_tfrecord_is_read_by_an_independent_parser(store: StoreReader, tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    folder = export(store, "tfrecord", tmp_path)
    found = {}
    for path in folder.iterdir():
        for example in reader.tfrecord_loader(str(path), None):
            found[bytes(example["key"]).decode()] = (path.stem, example)
    assert set(found) == set(store.keys())
    for at, key in enumerate(store.keys()):
        split, example = found[key]
        sample = store.read(at)
        assert split == store.meta.splits[store.numbers["split"][at]]
        same(np.reshape(example["image"], example["image/shape"]), sample["image"])
        same(np.reshape(example["series"], example["series/shape"]), sample["series"])
        same(np.reshape(example["label"], ()), sample["label"])
        assert bytes(example["text"]) == sample["text"].tobytes()


def test_lmdb(store: StoreReader, tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(export(store, "lmdb", tmp_path)), readonly=True) as database, database.begin() as view:
        keys = json.loads(view.get(b"__keys__"))
        assert keys == store.keys()
        for at, key in enumerate(keys):
            arrays = np.load(io.BytesIO(view.get(key.encode())), allow_pickle=False)
            for name, array in store.read(at).items():
                same(arrays[name], array)


def test_nothing_is_overwritten(store: StoreReader, tmp_path: Path) -> None:
    output = export(store, "parquet", tmp_path)
    before = output.read_bytes()
    with pytest.raises(StoreError, match="is there already"):
        export_store(store.folder, "hdf5", output)
    assert output.read_bytes() == before


def test_an_unknown_format_names_the_known_ones(store: StoreReader, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        export_store(store.folder, "zarr", tmp_path / "out")
    assert all(name in str(caught.value) for name in FORMATS)


def test_a_failed_export_leaves_nothing(
    store: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StoreReader, position: int) -> None:
        raise OSError("disk")

    monkeypatch.setattr(StoreReader, "read", fail)
    for name in ("hdf5", "tar"):
        with pytest.raises(StoreError, match=f"{tmp_path / name} cannot be written: disk"):
            export_store(store.folder, name, tmp_path / name)
    assert not list(tmp_path.iterdir())


LATE = {"hdf5": 4000, "tar": 14_000, "parquet": 3500, "tfrecord": 1500, "lmdb": 20_000}
"""Bytes of which the largest file of each format has some more: the last writes fail."""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
@pytest.mark.parametrize("to", FORMATS)
def test_a_disk_that_fills_up_is_told_and_the_process_lives(
    store: StoreReader, tmp_path: Path, to: str
) -> None:
    """In a process of its own: a file that libhdf5 cannot close ends its process by a signal, later."""
    if to == "lmdb":
        pytest.importorskip("lmdb")
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from flatout.errors import StoreError\n"
        "from flatout.store.export import export_store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "for limit in sys.argv[4:]:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        export_store(Path(sys.argv[1]), sys.argv[3], Path(sys.argv[2]))\n"
        "    except StoreError as error:\n"
        "        print(error)\n"
    )
    output, limits = tmp_path / "out", [0, 600, LATE[to]]
    command = [sys.executable, "-W", "error", "-c", program, store.folder, output, to, *map(str, limits)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout.splitlines()
    assert len(told) == len(limits)
    assert all(line.startswith(f"{output} cannot be written: ") for line in told)
    assert all("File too large" in line for line in told) or to == "lmdb"
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_by_what_is_free(
    store: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: StoreReader, position: int) -> None:
        raise OSError("Input/output error")  # as LMDB says it

    monkeypatch.setattr(StoreReader, "read", fail)
    monkeypatch.setattr("flatout.store.export.export.free_bytes", lambda folder: 4096)
    with pytest.raises(StoreError, match=r"Input/output error \(4\.0 KiB are free there\)$"):
        export_store(store.folder, "tar", tmp_path / "out")


@pytest.mark.parametrize("to", ["parquet", "tar"])
def test_a_disk_that_is_full_only_when_it_must_write(
    store: StoreReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "as NFS says it")

    monkeypatch.setattr("flatout.store.export.export.sync_file", fail)
    with pytest.raises(StoreError, match="out cannot be written: No space left on device"):
        export_store(store.folder, to, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_lmdb_holds_what_compression_had_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lmdb = pytest.importorskip("lmdb")
    monkeypatch.setattr("flatout.store.export.lmdb.SPARE_BYTES", 1 << 20)

    class Zeros(Items):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"x": np.zeros(1 << 18, np.float32)}

    fields = {"x": {"kind": "transform", "compression": "zstd"}}
    DataPreprocessor.from_dataset(Zeros(), tmp_path / "store", num_workers=0, fields=fields).run()
    assert export_store(tmp_path / "store", "lmdb", tmp_path / "out") == 12
    with lmdb.open(str(tmp_path / "out"), readonly=True) as database, database.begin() as transaction:
        assert np.load(io.BytesIO(transaction.get(b"11")))["x"].shape == (1 << 18,)


def test_a_place_that_cannot_be_written_is_named(store: StoreReader, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in FORMATS:
        if name == "lmdb":
            continue  # an optional package, with errors of its own
        with pytest.raises(StoreError, match="out cannot be written"):
            export_store(store.folder, name, tmp_path / "file" / "out")
