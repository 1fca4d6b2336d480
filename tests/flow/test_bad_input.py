"""Bad files of every format, through the whole pipeline: each is listed with path, stage and reason; the run
goes on, and the good samples are the same as without them."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import wave
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flatout.errors import ManifestError, TooManyBadError
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader
from flatout.store.verification import verify

NUM_GOOD = 12
MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Format:
    """How good files of one format are made, and bad ones beyond those that every format has."""

    suffix: str
    field: dict[str, Any]
    write: Callable[[Path, np.random.Generator], None]
    bad: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    needs: str = "numpy"


def write_npy(path: Path, draw: np.random.Generator) -> None:
    np.save(path, draw.random((4, 6)))


def npy_header(shape: tuple[int, ...]) -> bytes:
    """The header of an npy that claims this shape, without its data."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def write_npz(path: Path, draw: np.random.Generator) -> None:
    np.savez(path, x=draw.random((4, 6)))


def npz_bomb(path: Path) -> None:
    np.savez_compressed(path, x=np.zeros((1000, 1000)))


def npz_bomb_with_a_lie(path: Path) -> None:
    """The archive says 100 bytes, the array has 8 MB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy_header((1000, 1000)) + bytes(8_000_000))
    data = bytearray(path.read_bytes())
    size = struct.pack("<I", 8_000_000 + len(npy_header((1000, 1000))))
    while (at := data.find(size)) >= 0:
        data[at : at + 4] = struct.pack("<I", 100)
    path.write_bytes(bytes(data))


def write_image(path: Path, draw: np.random.Generator) -> None:
    Image.fromarray(draw.integers(0, 255, (24, 32), dtype=np.uint8)).save(path)


def png_with_size(path: Path, width: int, height: int) -> None:
    """A picture of a few bytes that claims to be this large."""
    import zlib

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(2000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b""))


def write_wav(path: Path, draw: np.random.Generator) -> None:
    write_samples(path, draw.integers(-30000, 30000, 800, dtype=np.int16))


def write_samples(path: Path, samples: Any, rate: int = 8000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples, np.int16).tobytes())


def wav_of_floats(path: Path, value: float) -> None:
    data = np.full(800, value, "<f4").tobytes()
    head = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 3, 1, 8000, 32000, 4, 32, b"data", len(data))
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(head) + len(data)) + b"WAVE" + head + data)


def write_csv(path: Path, draw: np.random.Generator) -> None:
    np.savetxt(path, draw.random((40, 1)), delimiter=",")


def write_nifti(path: Path, draw: np.random.Generator) -> None:
    import nibabel

    nibabel.save(nibabel.Nifti1Image(draw.random((5, 6, 7)).astype(np.float32), np.eye(4)), path)


def nifti_of(path: Path, array: Any) -> None:
    import nibabel

    nibabel.save(nibabel.Nifti1Image(np.asarray(array, np.float32), np.eye(4)), path)


def nifti_with_size(path: Path, size: int) -> None:
    """A header that claims size x size x size voxels."""
    write_nifti(path, np.random.default_rng(0))
    data = bytearray(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    data[40:56] = struct.pack("<8h", 3, size, size, size, 1, 1, 1, 1)
    path.write_bytes(gzip.compress(bytes(data)) if path.suffix == ".gz" else bytes(data))


def gzip_bomb(path: Path) -> None:
    nifti_with_size(path, 200)
    data = gzip.decompress(path.read_bytes())[:352]
    path.write_bytes(gzip.compress(data + bytes(200**3 * 4)))


def write_slice(path: Path, draw: np.random.Generator, **changes: Any) -> None:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    image.SOPClassUID, image.SOPInstanceUID = CTImageStorage, "1.2.3"
    image.SeriesInstanceUID, image.Modality = "1.2.4", "CT"
    image.Rows, image.Columns = 16, 20
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.BitsAllocated, image.BitsStored, image.HighBit, image.PixelRepresentation = 16, 16, 15, 0
    image.ImagePositionPatient, image.ImageOrientationPatient = [0, 0, 0], [1, 0, 0, 0, 1, 0]
    image.PixelSpacing, image.SliceThickness = [1, 1], 1
    image.RescaleSlope, image.RescaleIntercept = 1, 0
    image.PixelData = draw.integers(0, 3000, (16, 20), dtype=np.uint16).tobytes()
    for name, value in changes.items():
        setattr(image, name, value)
    image.save_as(path)


def write_series(path: Path, draw: np.random.Generator, positions: tuple[float, ...] = (0, 1, 2)) -> None:
    path.mkdir()
    for number, z in enumerate(positions):
        write_slice(
            path / f"{number}.dcm", draw, ImagePositionPatient=[0, 0, z], SOPInstanceUID=f"1.2.3.{number}"
        )


def dicom_without(path: Path, name: str) -> None:
    write_slice(path, np.random.default_rng(0))
    import pydicom

    image = pydicom.dcmread(path)
    delattr(image, name)
    image.save_as(path)


ARRAY = {"kind": "array", "dtype": "float64"}
FORMATS = {
    "npy": Format(
        ".npy",
        ARRAY,
        write_npy,
        {
            "shape": lambda p: np.save(p, np.ones((5, 6))),
            "axes": lambda p: np.save(p, np.ones((4, 6, 1))),
            "nan": lambda p: np.save(p, np.full((4, 6), np.nan)),
            "infinite": lambda p: np.save(p, np.array([[np.inf] * 6] * 4)),
            "objects": lambda p: np.save(p, np.array([{"a": 1}], dtype=object), allow_pickle=True),
            "texts": lambda p: np.save(p, np.array([["a"] * 6] * 4)),
            "lie": lambda p: p.write_bytes(npy_header((4, 6_000_000_000)) + bytes(192)),
            "negative": lambda p: p.write_bytes(npy_header((-4, 6)) + bytes(192)),
            "bomb": lambda p: np.save(p, np.zeros(MAX_BYTES // 4)),
        },
    ),
    "npz": Format(
        ".npz",
        {**ARRAY, "member": "x"},
        write_npz,
        {
            "shape": lambda p: np.savez(p, x=np.ones((5, 6))),
            "nan": lambda p: np.savez(p, x=np.full((4, 6), np.nan)),
            "member": lambda p: np.savez(p, y=np.ones((4, 6))),
            "objects": lambda p: np.savez(p, x=np.array([{"a": 1}], dtype=object)),
            "bomb": npz_bomb,
            "lie": npz_bomb_with_a_lie,
        },
    ),
    "png": Format(
        ".png",
        {"kind": "image"},
        write_image,
        {
            "shape": lambda p: Image.new("L", (9, 9)).save(p),
            "colour": lambda p: Image.new("RGB", (32, 24)).save(p),
            "bomb": lambda p: png_with_size(p, 100_000, 100_000),
            "lie": lambda p: png_with_size(p, 32, 2400),
            "zero": lambda p: png_with_size(p, 0, 24),
            "other": lambda p: p.write_text("<svg></svg>"),
        },
    ),
    "jpeg": Format(
        ".jpg",
        {"kind": "image"},
        write_image,
        {
            "shape": lambda p: Image.new("L", (9, 9)).save(p),
            "bomb": lambda p: Image.new("L", (5000, 5000)).save(p),
        },
    ),
    "wav": Format(
        ".wav",
        {"kind": "signal"},
        write_wav,
        {
            "channels": lambda p: p.write_bytes(_stereo()),
            "nan": lambda p: wav_of_floats(p, float("nan")),
            "infinite": lambda p: wav_of_floats(p, float("inf")),
            "bomb": lambda p: write_samples(p, np.zeros(MAX_BYTES, np.int16)),
            "no samples": lambda p: write_samples(p, []),
        },
        needs="soundfile",
    ),
    "csv": Format(
        ".csv",
        {"kind": "signal", "source_rate": 100, "ragged": False},
        write_csv,
        {
            "words": lambda p: p.write_text("one\ntwo\nthree\n"),
            "nan": lambda p: p.write_text("1\nnan\n3\n"),
            "ragged": lambda p: p.write_text("1,2\n3\n4,5,6\n"),
            "bomb": lambda p: p.write_text("1\n" * MAX_BYTES),
        },
    ),
    "nifti": Format(
        ".nii",
        {"kind": "volume"},
        write_nifti,
        {
            "shape": lambda p: nifti_of(p, np.ones((5, 6, 8))),
            "axes": lambda p: nifti_of(p, np.ones((5, 6, 7, 3))),
            "nan": lambda p: nifti_of(p, np.full((5, 6, 7), np.nan)),
            "lie": lambda p: nifti_with_size(p, 30_000),
        },
        needs="nibabel",
    ),
    "nifti gz": Format(
        ".nii.gz",
        {"kind": "volume"},
        write_nifti,
        {
            "shape": lambda p: nifti_of(p, np.ones((5, 6, 8))),
            "nan": lambda p: nifti_of(p, np.full((5, 6, 7), np.nan)),
            "lie": lambda p: nifti_with_size(p, 30_000),
            "bomb": gzip_bomb,
            "not packed": lambda p: p.write_bytes(bytes(500)),
        },
        needs="nibabel",
    ),
    "dicom": Format(
        ".dcm",
        {"kind": "image"},
        write_slice,
        {
            "shape": lambda p: write_slice(p, np.random.default_rng(0), Rows=20, Columns=16),
            "lie": lambda p: write_slice(p, np.random.default_rng(0), Rows=60_000, Columns=60_000),
            "no pixels": lambda p: dicom_without(p, "PixelData"),
            "no rows": lambda p: dicom_without(p, "Rows"),
        },
        needs="pydicom",
    ),
    "dicom series": Format(
        "",
        {"kind": "volume"},
        write_series,
        {
            "gap": lambda p: write_series(p, np.random.default_rng(0), (0, 1, 5)),
            "twice": lambda p: write_series(p, np.random.default_rng(0), (0, 1, 1)),
            "no slices": lambda p: p.mkdir(),
            "shape": lambda p: write_series(p, np.random.default_rng(0), (0, 1, 2, 3)),
            "no dicom": lambda p: (p.mkdir(), (p / "0.dcm").write_bytes(b"nothing")),
        },
        needs="pydicom",
    ),
}


def _stereo() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(3200))
    return file.getvalue()


class Case:
    """A folder of good and bad files of one format."""

    def __init__(self, folder: Path, form: Format) -> None:
        self.folder = folder
        self.form = form
        self.bad: list[str] = []
        for number in range(NUM_GOOD):
            form.write(folder / f"good{number:02d}{form.suffix}", np.random.default_rng(number))
        self.good = [f"good{number:02d}{form.suffix}" for number in range(NUM_GOOD)]

    def spoil(self) -> None:
        """Every kind of bad file that this format can have."""
        whole = self.form.suffix and (self.folder / self.good[0]).read_bytes()
        for name, write in self.form.bad.items():
            write(self._new(name))
        if whole:
            self._new("half").write_bytes(whole[: len(whole) // 2])
            self._new("few").write_bytes(whole[:7])
            self._new("empty").write_bytes(b"")
            self._new("noise").write_bytes(np.random.default_rng(0).bytes(len(whole)))
            self._new("zeros").write_bytes(bytes(len(whole)))
            self._new("folder").mkdir()
        self._new("missing")
        self._new("link").symlink_to(self.folder / "nowhere")
        os.mkfifo(self._new("pipe"))
        (self.folder.parent / f"outside{self.form.suffix}").write_bytes(whole or b"")
        self.bad += [f"../outside{self.form.suffix}", f"/etc/passwd{self.form.suffix}"]

    def settings(self, store: str, rows: list[str], **more: Any) -> dict[str, Any]:
        (self.folder / "rows.csv").write_text("\n".join(["path", *rows]) + "\n")
        return {
            "manifest": str(self.folder / "rows.csv"),
            "preprocessed_data_dir": str(self.folder.parent / store),
            "fields": {"x": {**self.form.field, "column": "path"}},
            "max_sample_bytes": MAX_BYTES,
            "max_bad_fraction": 1.0,
            "num_workers": 1,
            **more,
        }

    def mixed(self) -> list[str]:
        """Good rows first, then good and bad ones in turn."""
        rest = [*self.good[8:], *self.bad]
        random.Random(0).shuffle(rest)
        return [*self.good[:8], *rest]

    def _new(self, name: str) -> Path:
        path = f"bad-{name.replace(' ', '-')}{self.form.suffix}"
        self.bad.append(path)
        return self.folder / path


@pytest.fixture
def case(tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    form = FORMATS[request.param]
    pytest.importorskip(form.needs)
    (tmp_path / "source").mkdir()
    return Case(tmp_path / "source", form)


def samples(store: Path) -> dict[str, bytes]:
    reader = StoreReader(store)
    return {key: reader.read(at)["x"].tobytes() for at, key in enumerate(reader.keys())}


@pytest.mark.parametrize("case", FORMATS, indirect=True)
def test_bad_files_are_listed_and_the_rest_is_the_same(case: Case, tmp_path: Path) -> None:
    DataPreprocessor(case.settings("reference", case.good, num_workers=0)).run()
    case.spoil()

    stats = DataPreprocessor(case.settings("store", case.mixed())).run()

    lines = (tmp_path / "store" / "quarantine.jsonl").read_text().splitlines()
    listed = {row["key"]: row for row in map(json.loads, lines)}
    assert sorted(listed) == sorted(case.bad)
    assert stats.failed == len(case.bad)
    assert samples(tmp_path / "store") == samples(tmp_path / "reference")
    log = (tmp_path / "store" / "preprocessing.log").read_text()
    for key, row in listed.items():
        assert row["path"] == key
        assert row["stage"] in ("find", "decode", "transform", "check")
        assert len(row["error"]) > 10, row
        assert "Traceback" not in row["error"]
        assert f"quarantined {key} " in log
    assert verify(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("case", FORMATS, indirect=True)
def test_two_hundred_damaged_files(case: Case, tmp_path: Path) -> None:
    """Flipped bytes and cut ends: whatever a decoder makes of them, it is this one row's matter."""
    DataPreprocessor(case.settings("reference", case.good, num_workers=0)).run()
    draw = random.Random(0)
    for number in range(200):
        name = f"damaged{number:03d}{case.form.suffix}"
        source, target = case.folder / draw.choice(case.good), case.folder / name
        case.bad.append(name)
        if source.is_dir():
            shutil.copytree(source, target)
            damage(draw.choice(sorted(target.iterdir())), draw)
        else:
            shutil.copy(source, target)
            damage(target, draw)

    stats = DataPreprocessor(case.settings("store", case.mixed(), decode_timeout_s=20, num_workers=2)).run()

    found, good = samples(tmp_path / "store"), samples(tmp_path / "reference")
    assert {key: found[key] for key in good} == good
    assert len(found) + stats.failed == NUM_GOOD + 200
    assert stats.failed >= 20
    assert verify(tmp_path / "store")


def damage(path: Path, draw: random.Random) -> None:
    """Flip a few bytes, mostly near the start where headers are; or cut the end."""
    data = bytearray(path.read_bytes())
    if draw.random() < 0.2:
        data = data[: draw.randrange(len(data))]
    for _ in range(draw.choice([1, 2, 8])):
        if data:
            at = draw.randrange(min(len(data), 400) if draw.random() < 0.7 else len(data))
            data[at] = draw.randrange(256)
    path.write_bytes(bytes(data))


def test_too_many_bad_files(tmp_path: Path) -> None:
    """Exit 1 with the list written; once they are mended the same command ends well."""
    (tmp_path / "source").mkdir()
    case = Case(tmp_path / "source", FORMATS["npy"])
    case.bad = ["late0.npy", "late1.npy"]
    config = case.settings("store", [*case.good, *case.bad], max_bad_fraction=0.1)
    (tmp_path / "config.json").write_text(json.dumps(config))

    failed = flatout_prepare(tmp_path)

    assert failed.returncode == 1
    assert "2 of 14 rows failed, more than max_bad_fraction 0.1" in failed.stderr
    assert "late0.npy: find: " in failed.stderr
    assert "quarantine.jsonl" in failed.stderr
    lines = (tmp_path / "store" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == case.bad
    for name in case.bad:
        np.save(case.folder / name, np.ones((4, 6)))
    mended = flatout_prepare(tmp_path)
    assert mended.returncode == 0, mended.stderr
    assert len(samples(tmp_path / "store")) == 14
    assert (tmp_path / "store" / "quarantine.jsonl").read_text() == ""


def flatout_prepare(folder: Path) -> subprocess.CompletedProcess[str]:
    call = "import sys; from flatout.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", call, "prepare", "--config", str(folder / "config.json")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


class TestNoGoodFile:
    def test_all_are_bad(self, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        case = Case(tmp_path / "source", FORMATS["npy"])

        with pytest.raises(TooManyBadError, match="20 of 20 rows failed"):
            DataPreprocessor(case.settings("store", [f"{n}.npy" for n in range(20)])).run()

        lines = (tmp_path / "store" / "quarantine.jsonl").read_text().splitlines()
        assert len(lines) == 20

    def test_the_first_ones_are_bad(self, tmp_path: Path) -> None:
        """Shapes are settled by the first rows that can be read."""
        (tmp_path / "source").mkdir()
        case = Case(tmp_path / "source", FORMATS["npy"])
        missing = [f"{n}.npy" for n in range(20)]

        stats = DataPreprocessor(case.settings("store", [*missing, *case.good])).run()

        assert (stats.num_samples, stats.failed) == (NUM_GOOD, 20)


class TestParquet:
    """Lists in the manifest itself."""

    def config(self, folder: Path, rows: list[Any], **more: Any) -> dict[str, Any]:
        table = {"id": [f"r{at}" for at in range(len(rows))], "x": pa.array(rows, pa.list_(pa.float64()))}
        pq.write_table(pa.table(table), folder / "rows.parquet")
        return {
            "manifest": str(folder / "rows.parquet"),
            "preprocessed_data_dir": str(folder / "store"),
            "fields": {"x": {"kind": "sequence", "columns": ["x"]}},
            "max_bad_fraction": 1.0,
            "num_workers": 0,
            **more,
        }

    def test_bad_lists(self, tmp_path: Path) -> None:
        good = [[float(at)] * (at + 1) for at in range(10)]
        rows = [*good, None, [1.0, None, 3.0], [float("nan")], [float("inf"), 1.0], [0.0] * 10_000]

        stats = DataPreprocessor(self.config(tmp_path, rows, max_sample_bytes=50_000)).run()

        reader = StoreReader(tmp_path / "store")
        assert stats.failed == 5
        assert reader.keys() == [f"r{at}" for at in range(10)]
        assert [reader.read(at)["x"].reshape(-1).tolist() for at in range(10)] == good

    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
    def test_a_broken_manifest(self, tmp_path: Path, share: float) -> None:
        config = self.config(tmp_path, [[1.0], [2.0]])
        DataPreprocessor(config).run()
        whole = (tmp_path / "rows.parquet").read_bytes()
        (tmp_path / "rows.parquet").write_bytes(whole[: int(len(whole) * share)])

        with pytest.raises(ManifestError, match=r"rows\.parquet"):
            DataPreprocessor(config).run()

        assert len(StoreReader(tmp_path / "store")) == 2


@pytest.mark.parametrize("content", [b"", b"path\n", b"\xff\xfe\x00\x01\x02", bytes(1000)], ids=str)
def test_a_broken_csv_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "source").mkdir()
    case = Case(tmp_path / "source", FORMATS["npy"])
    config = case.settings("store", case.good, num_workers=0)
    DataPreprocessor(config).run()
    (case.folder / "rows.csv").write_bytes(content)

    with pytest.raises(ManifestError, match=r"rows\.csv"):
        DataPreprocessor(config).run()

    assert len(samples(tmp_path / "store")) == NUM_GOOD
