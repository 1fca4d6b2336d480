"""Every export holds exactly the store's samples, read back with the format's own library."""

from __future__ import annotations

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


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
@pytest.mark.parametrize("num_bytes", [0, 600, 4000])
def test_a_disk_that_fills_up_is_told_and_the_process_lives(
    store: StoreReader, tmp_path: Path, num_bytes: int
) -> None:
    """In a process of its own: a file that libhdf5 cannot close ends its process by a signal, later."""
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from flatout.errors import StoreError\n"
        "from flatout.store.export import export_store\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))\n"
        "try:\n"
        "    export_store(Path(sys.argv[1]), 'hdf5', Path(sys.argv[2]))\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    output = tmp_path / "out"
    command = [sys.executable, "-c", program, str(store.folder), str(output), str(num_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{output} cannot be written: File too large\n"
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(store: StoreReader, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in FORMATS:
        if name == "lmdb":
            continue  # an optional package, with errors of its own
        with pytest.raises(StoreError, match="out cannot be written"):
            export_store(store.folder, name, tmp_path / "file" / "out")
