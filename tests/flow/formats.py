"""Good and bad files of every format that flatout reads, a few hundred bytes each."""

from __future__ import annotations

import gzip
import io
import struct
import wave
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

MAX_BYTES = 1_000_000
"""The largest sample that the tests allow."""


@dataclass(frozen=True)
class Format:
    """How good files of one format are made, and bad ones beyond those that every format has."""

    suffix: str
    field: dict[str, Any]
    write: Callable[[Path, np.random.Generator], None]
    bad: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    needs: str = "numpy"
    other_half: str = ""
    """Suffix of a file that belongs to each, and is written with it."""
    takes_any_bytes: bool = False
    """Bytes of the right number are always values: noise cannot be told from them."""
    is_tarred: bool = False
    """The files are members of a tar."""


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


def write_sound(path: Path, draw: np.random.Generator) -> None:
    sound_of(path, 0.5 * np.sin(np.arange(800) * draw.uniform(0.05, 0.3)))


def sound_of(path: Path, samples: Any) -> None:
    import soundfile

    soundfile.write(path, np.asarray(samples, np.float32), 8000)


def bmp_with_size(path: Path, width: int, height: int) -> None:
    write_image(path, np.random.default_rng(0))
    data = bytearray(path.read_bytes())
    data[18:26] = struct.pack("<ii", width, height)
    path.write_bytes(bytes(data))


def tiff_with_size(path: Path, width: int, height: int) -> None:
    """Its first folder of tags says another size than its one strip has."""
    write_image(path, np.random.default_rng(0))
    data = bytearray(path.read_bytes())
    (at,) = struct.unpack_from("<I", data, 4)
    (num_tags,) = struct.unpack_from("<H", data, at)
    for entry in range(at + 2, at + 2 + 12 * num_tags, 12):
        (tag,) = struct.unpack_from("<H", data, entry)
        if tag in (256, 257, 278):  # width, length, rows of a strip
            struct.pack_into("<HHII", data, entry, tag, 4, 1, width if tag == 256 else height)
    path.write_bytes(bytes(data))


def write_csv(path: Path, draw: np.random.Generator) -> None:
    np.savetxt(path, draw.random((40, 1)), delimiter=",")


def write_nifti(path: Path, draw: np.random.Generator) -> None:
    import nibabel

    nibabel.save(nibabel.Nifti1Image(draw.random((5, 6, 7)).astype(np.float32), np.eye(4)), path)


def nifti_of(path: Path, array: Any) -> None:
    import nibabel

    nibabel.save(nibabel.Nifti1Image(np.asarray(array, np.float32), np.eye(4)), path)


def pair_of(path: Path, array: Any) -> None:
    """Both halves, whichever the path names."""
    import nibabel

    nibabel.save(nibabel.Nifti1Pair(np.asarray(array, np.float32), np.eye(4)), path.with_suffix(".img"))


def write_pair(path: Path, draw: np.random.Generator) -> None:
    pair_of(path, draw.random((5, 6, 7)))


def pair_without(path: Path, suffix: str) -> None:
    write_pair(path, np.random.default_rng(0))
    path.with_suffix(suffix).unlink()


def pair_with_size(path: Path, size: int) -> None:
    write_pair(path, np.random.default_rng(0))
    data = bytearray(path.with_suffix(".hdr").read_bytes())
    data[40:56] = struct.pack("<8h", 3, size, size, size, 1, 1, 1, 1)
    path.with_suffix(".hdr").write_bytes(bytes(data))


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


def series_without_suffixes(path: Path, last: bytes | None) -> None:
    """Slices IM0000 to IM0002; the last has other bytes, or is of another depth."""
    write_series(path, np.random.default_rng(0))
    for number, slice_path in enumerate(sorted(path.iterdir())):
        slice_path.rename(path / f"IM{number:04d}")
    if last is not None:
        (path / "IM0002").write_bytes(last)


def series_of_two_depths(path: Path) -> None:
    write_series(path, np.random.default_rng(0), (0, 1))
    eight = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7, "PixelData": bytes(320)}
    write_slice(path / "2.dcm", np.random.default_rng(0), ImagePositionPatient=[0, 0, 2], **eight)


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
            "empty without suffix": lambda p: series_without_suffixes(p, b""),
            "noise without suffix": lambda p: series_without_suffixes(p, np.random.default_rng(0).bytes(900)),
            "two depths": series_of_two_depths,
        },
        needs="pydicom",
    ),
}

FORMATS |= {
    "tiff": Format(
        ".tiff",
        {"kind": "image"},
        write_image,
        {
            "shape": lambda p: Image.new("L", (9, 9)).save(p),
            "bomb": lambda p: tiff_with_size(p, 100_000, 100_000),
            "lie": lambda p: tiff_with_size(p, 32, 2400),
            "zero": lambda p: tiff_with_size(p, 0, 24),
        },
    ),
    "bmp": Format(
        ".bmp",
        {"kind": "image"},
        write_image,
        {
            "shape": lambda p: Image.new("L", (9, 9)).save(p),
            "colour": lambda p: Image.new("RGB", (32, 24)).save(p),
            "bomb": lambda p: bmp_with_size(p, 100_000, 100_000),
            "lie": lambda p: bmp_with_size(p, 32, 2400),
            "zero": lambda p: bmp_with_size(p, 0, 24),
        },
    ),
    "hdr": Format(
        ".hdr",
        {"kind": "volume"},
        write_pair,
        {
            "shape": lambda p: pair_of(p, np.ones((5, 6, 8))),
            "lie": lambda p: pair_with_size(p, 30_000),
            "no image": lambda p: pair_without(p, ".img"),
        },
        needs="nibabel",
        other_half=".img",
    ),
    "img": Format(
        ".img",
        {"kind": "volume"},
        write_pair,
        {
            "nan": lambda p: pair_of(p, np.full((5, 6, 7), np.nan)),
            "no header": lambda p: pair_without(p, ".hdr"),
            "damaged header": lambda p: pair_with_size(p, -3000),
        },
        needs="nibabel",
        other_half=".hdr",
        takes_any_bytes=True,
    ),
    **{
        name: Format(
            f".{name}",
            {"kind": "signal"},
            write_sound,
            {
                "channels": lambda p: sound_of(p, np.zeros((800, 2))),
                "length": lambda p: sound_of(p, np.zeros(500)),
                "bomb": lambda p: sound_of(p, np.zeros(MAX_BYTES)),
                "no samples": lambda p: sound_of(p, []),
            },
            needs="soundfile",
        )
        for name in ("flac", "ogg")
    },
}
FORMATS |= {f"tarred {name}": replace(FORMATS[name], is_tarred=True) for name in ("wav", "flac")}


def _stereo() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(3200))
    return file.getvalue()
