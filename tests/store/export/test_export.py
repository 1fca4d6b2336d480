"""Every export holds exactly the store's samples, read back with the format's own library."""

from __future__ import annotations

import errno
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from flatout.errors import ConfigError, StoreCorruptError, StoreError
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
    if to != "lmdb":
        assert [line for line in told if "File too large" not in line] == []
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


@pytest.mark.parametrize("to", FORMATS)
def test_damage_does_not_travel(store: StoreReader, tmp_path: Path, to: str) -> None:
    if to == "lmdb":
        pytest.importorskip("lmdb")
    shutil.copytree(store.folder, tmp_path / "store")
    shard = store.meta.shards[0]
    offset = store.shard(0).offset_of("image")
    assert offset is not None
    with open(tmp_path / "store" / "shards" / shard.file, "rb+") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(StoreCorruptError, match=rf"{shard.file} is damaged: its hash.*verify .* --repair"):
        export_store(tmp_path / "store", to, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


class Awkward(Items):
    """Fields that have the names of what an export writes beside them."""

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {
            "key": at * 3,
            "split": np.full((2, 1), at, np.float32),
            "split_shape": float(at),
            "file": np.arange(at + 1),
        }


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    folder = tmp_path_factory.mktemp("awkward") / "store"
    fields = {"file": {"ragged": True}}
    DataPreprocessor.from_dataset(Awkward(), folder, num_workers=0, fields=fields).run()
    return StoreReader(folder)


def splits_of(store: StoreReader) -> list[str]:
    return [store.meta.splits[number] for number in store.numbers["split"]]


def test_fields_called_key_and_split_in_hdf5(awkward: StoreReader, tmp_path: Path) -> None:
    with h5py.File(export(awkward, "hdf5", tmp_path)) as file:
        assert file["key"][:].tolist() == [at * 3 for at in range(12)]
        assert file["flatout/key"].asstr()[:].tolist() == awkward.keys()
        assert file["flatout/split"].asstr()[:].tolist() == splits_of(awkward)


def test_fields_called_key_and_split_in_parquet(awkward: StoreReader, tmp_path: Path) -> None:
    rows = pq.read_table(export(awkward, "parquet", tmp_path)).to_pylist()
    for at, row in enumerate(rows):
        wanted = {"key": at * 3, "split": [at, at], "split_shape": at, "file": list(range(at + 1))}
        assert {name: row[name] for name in wanted} == wanted
        assert (row["flatout/split_shape"], row["file_shape"]) == ([2, 1], [at + 1])
    assert [row["flatout/key"] for row in rows] == awkward.keys()
    assert [row["flatout/split"] for row in rows] == splits_of(awkward)


def test_fields_called_key_and_split_in_tfrecord(awkward: StoreReader, tmp_path: Path) -> None:
    reader = pytest.importorskip("tfrecord.reader")
    found = {}
    for path in export(awkward, "tfrecord", tmp_path).iterdir():
        for example in reader.tfrecord_loader(str(path), None):
            found[bytes(example["flatout/key"]).decode()] = (int(example["key"][0]), path.stem)
    splits = splits_of(awkward)
    assert found == {key: (at * 3, splits[at]) for at, key in enumerate(awkward.keys())}


def test_fields_called_file_in_lmdb(awkward: StoreReader, tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(export(awkward, "lmdb", tmp_path)), readonly=True) as database, database.begin() as view:
        for at, key in enumerate(awkward.keys()):
            arrays = np.load(io.BytesIO(view.get(key.encode())), allow_pickle=False)
            assert {name: arrays[name].tolist() for name in arrays} == {
                name: array.tolist() for name, array in awkward.read(at).items()
            }


class Numbers(Items):
    """Every dtype that a store holds."""

    def __getitem__(self, at: int) -> dict[str, Any]:
        dtypes = [*(f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)), "float16", "float64"]
        return {"flag": np.array([True, False]), **{dtype: np.array([at, 3], dtype) for dtype in dtypes}}


def test_every_dtype_in_every_format(tmp_path: Path) -> None:
    DataPreprocessor.from_dataset(Numbers(), tmp_path / "store", num_workers=0).run()
    store = StoreReader(tmp_path / "store")
    rows = pq.read_table(export(store, "parquet", tmp_path)).to_pylist()
    with h5py.File(export(store, "hdf5", tmp_path)) as file:
        for at, row in enumerate(rows):
            for name, array in store.read(at).items():
                assert row[name] == array.tolist()
                assert file[name].dtype == array.dtype
                same(file[name][at], array)


@pytest.mark.parametrize("to", FORMATS)
def test_complex_numbers_are_kept_or_refused(tmp_path: Path, to: str) -> None:
    class Waves(Items):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"z": np.array([at + 1j, 2.0], np.complex64)}

    DataPreprocessor.from_dataset(Waves(), tmp_path / "store", num_workers=0).run()
    if to in ("parquet", "tfrecord"):
        with pytest.raises(ConfigError, match=f"'z' is complex64, and {to} has no complex.*hdf5, tar, lmdb"):
            export_store(tmp_path / "store", to, tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return
    if to == "lmdb":
        pytest.importorskip("lmdb")
    output = export(StoreReader(tmp_path / "store"), to, tmp_path)
    if to == "hdf5":
        with h5py.File(output) as file:
            same(file["z"][:, 0], np.arange(12) + 1j)


def test_a_number_beyond_int64_is_not_wrapped(tmp_path: Path) -> None:
    class Hashes(Items):
        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"h": np.array([2**64 - 1 - at], np.uint64)}

    DataPreprocessor.from_dataset(Hashes(), tmp_path / "store", num_workers=0).run()
    with pytest.raises(StoreError, match="18446744073709551615 does not fit the int64 of tfrecord"):
        export_store(tmp_path / "store", "tfrecord", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", FORMATS)
def test_a_disk_that_is_really_full(store: StoreReader, tmp_path: Path, to: str) -> None:
    """In a process of its own: to touch a map on a full disk ends the process by a signal."""
    if to == "lmdb":
        pytest.importorskip("lmdb")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small disk")
    try:
        (disk / "filler").write_bytes(bytes(256 << 10))
        program = (
            "import sys\n"
            "from pathlib import Path\n"
            "from flatout.errors import StoreError\n"
            "from flatout.store.export import export_store\n"
            "try:\n"
            "    export_store(Path(sys.argv[1]), sys.argv[3], Path(sys.argv[2]))\n"
            "except StoreError as error:\n"
            "    print(error)\n"
        )
        command = [sys.executable, "-W", "error", "-c", program, store.folder, disk / "out", to]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{disk / 'out'} cannot be written: ")
        assert [path.name for path in disk.iterdir()] == ["filler"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
