"""npy, npz and text tables: exact round trips, and damage that never gets through unnoticed."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from flatout.errors import SampleError
from flatout.source import numeric
from flatout.source.files import SourceFile
from flatout.types import Array, Decoded, Limits

LIMITS = Limits()
Decode = Callable[[SourceFile, Limits], Decoded]


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npz(compressed: bool = True, **members: Array) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **members)
    return stream.getvalue()


def read(folder: Path, decode: Decode, data: bytes, limits: Limits = LIMITS) -> Decoded:
    path = folder / "sample.bin"
    path.write_bytes(data)
    return decode(SourceFile.whole(path), limits)


def npy_claiming(header: str, values: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0)))
def test_npy_round_trip(array: Array):
    found = numeric.parse_npy(npy(array), "x", LIMITS)
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "|u1", "<i8", "?"])
def test_npy_fortran_order_and_byte_order(tmp_path, dtype):
    array = np.asfortranarray((np.arange(24).reshape(4, 6) % 7).astype(dtype))
    np.testing.assert_array_equal(read(tmp_path, numeric.decode_npy, npy(array)).array, array)


def test_objects_are_refused_unread(tmp_path):
    data = io.BytesIO()
    np.save(data, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(SampleError, match="objects are never loaded"):
        read(tmp_path, numeric.decode_npy, data.getvalue())


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -1), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 2, }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 0, 99999999999999999999), }",
        "__import__('os').getcwd()",
        "(" * 110,
    ],
)
def test_npy_header_that_lies(tmp_path, header):
    with pytest.raises(SampleError):
        read(tmp_path, numeric.decode_npy, npy_claiming(header, bytes(16)))


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
def test_structured_npy_with_odd_names_is_refused(tmp_path):
    with pytest.raises(SampleError, match="version"):
        read(tmp_path, numeric.decode_npy, npy(np.zeros(2, [("\u0100", "<f4")])))


def test_npy_over_the_limit(tmp_path):
    data = npy(np.zeros(100))
    with pytest.raises(SampleError):
        read(tmp_path, numeric.decode_npy, data, Limits(max_sample_bytes=799))


def test_npz_with_one_array_needs_no_name(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    for compressed in (False, True):
        decoded = read(tmp_path, numeric.decode_npz, npz(compressed, volume=array))
        np.testing.assert_array_equal(decoded.array, array)
        np.testing.assert_array_equal(decoded.info["members"]["volume"](), array)


def test_npz_with_several_loads_the_one_asked_for(tmp_path):
    decoded = read(tmp_path, numeric.decode_npz, npz(a=np.arange(3), b=np.ones((2, 2))))
    assert sorted(decoded.info["members"]) == ["a", "b"]
    np.testing.assert_array_equal(decoded.info["members"]["b"](), np.ones((2, 2)))


def test_npz_bomb_is_refused_before_it_inflates(tmp_path):
    data = npz(bomb=np.zeros(4_000_000, np.uint8))
    assert len(data) < 10_000
    with pytest.raises(SampleError, match="max_sample_bytes"):
        read(tmp_path, numeric.decode_npz, data, Limits(max_sample_bytes=1_000_000))


def test_npz_entry_that_understates_its_size(tmp_path):
    data = npz(bomb=np.zeros(4_000_000, np.uint8))
    lying = data.replace(struct.pack("<I", 4_000_128), struct.pack("<I", 1000))
    assert lying != data
    with pytest.raises(SampleError):
        read(tmp_path, numeric.decode_npz, lying, Limits(max_sample_bytes=1_000_000))


def test_npz_without_arrays_or_in_another_compression(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    with pytest.raises(SampleError, match="no arrays"):
        read(tmp_path, numeric.decode_npz, stream.getvalue())
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", npy(np.arange(3)))
    with pytest.raises(SampleError, match="compressed in another way"):
        read(tmp_path, numeric.decode_npz, stream.getvalue())


CSV_TEXT = "time,mV\n" + "".join(f"{i / 10},{np.sin(i):.6f}\n" for i in range(60))
FILES: dict[str, tuple[Decode, bytes]] = {
    "npy": (numeric.decode_npy, npy(np.arange(200, dtype=np.float32).reshape(20, 10))),
    "npz": (numeric.decode_npz, npz(a=np.arange(200, dtype=np.int16))),
    "npz of two": (numeric.decode_npz, npz(a=np.arange(50), b=np.arange(9.0))),
    "csv": (numeric.decode_csv, CSV_TEXT.encode()),
}


@pytest.mark.parametrize("name", ["npy", "npz", "npz of two"])
def test_truncated_anywhere_is_an_error(tmp_path, name):
    decode, data = FILES[name]
    for length in range(0, len(data), max(1, len(data) // 150)):
        with pytest.raises(SampleError):
            read(tmp_path, decode, data[:length])


@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning", "ignore::SyntaxWarning")
@pytest.mark.parametrize("name", FILES)
def test_flipped_bytes_give_a_sample_error_or_arrays(tmp_path, name):
    decode, data = FILES[name]
    rng = np.random.default_rng(5)
    for _ in range(200):
        damaged = bytearray(data)
        top = 130 if rng.random() < 0.5 else len(data)
        damaged[rng.integers(top)] ^= 1 << rng.integers(8)
        try:
            decoded = read(tmp_path, decode, bytes(damaged))
            found = [decoded.array, *(load() for load in decoded.info.get("members", {}).values())]
        except SampleError:
            continue
        assert all(isinstance(array, np.ndarray) for array in found)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " ", "   "])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("header", [True, False])
def test_tables_of_every_form(tmp_path, delimiter, end, header):
    table = np.array([[1.5, -2e-3], [3, 4], [5, np.inf]])
    lines = [delimiter.join(f"{cell:g}" for cell in row) for row in table]
    text = end.join([delimiter.join(["a", '"b"'])] * header + [lines[0], "", *lines[1:]])
    decoded = read(tmp_path, numeric.decode_csv, b"\xef\xbb\xbf# made by hand\n" + text.encode())
    np.testing.assert_array_equal(decoded.array, table)
    assert decoded.info["columns"] == (["a", "b"] if header else None)


@given(
    arrays.arrays(
        np.float64, st.tuples(st.integers(1, 20), st.integers(1, 5)), elements=st.floats(allow_nan=False)
    )
)
def test_written_numbers_come_back_exactly(tmp_path_factory, table: Array):
    text = "\n".join(",".join(repr(float(cell)) for cell in row) for row in table)
    decoded = read(tmp_path_factory.getbasetemp(), numeric.decode_csv, text.encode())
    np.testing.assert_array_equal(decoded.array, table)
    assert decoded.array.dtype == np.float64


def test_one_column_whose_name_has_spaces(tmp_path):
    decoded = read(tmp_path, numeric.decode_csv, b"lead II (mV)\n1\n2\n")
    assert decoded.info["columns"] == ["lead II (mV)"]
    assert decoded.array.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n# only a remark\n", "is empty"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3,x\n", r"line 3, column 2 \(b\): 'x' is no number"),
        ("a;b\n1;2\n3;0,5\n", r"line 3, column 2 \(b\): '0,5' is no number; .*decimal comma"),
        ("1,2\n\n3,\n", "line 3, column 2: an empty cell"),
        ("1,2\n3\n", "line 2: 1 columns, wanted 2"),
        ("1,2,x\n3\n", "line 1: 'x' among numbers"),
        ("a,b,c\n1,2\n", "3 column names for 2 columns"),
        ("1,oops\n3,4\n", "line 1: 'oops' among numbers"),
        ("1,5;2,5\n1,5;2,5\n", "'1,5' is no number"),
    ],
)
def test_tables_that_are_none(tmp_path, text, message):
    with pytest.raises(SampleError, match=message):
        read(tmp_path, numeric.decode_csv, text.encode())


def test_text_in_another_encoding_and_binary(tmp_path):
    for data in ("1,2\n".encode("utf-16"), bytes(range(256)), b"\0" * 64):
        with pytest.raises(SampleError):
            read(tmp_path, numeric.decode_csv, data)


def test_table_over_the_limit(tmp_path):
    with pytest.raises(SampleError, match="max_sample_bytes"):
        read(tmp_path, numeric.decode_csv, b"1,2\n" * 100, Limits(max_sample_bytes=1000))


def test_real_text_records_name_their_first_text_cell(data_dir):
    path = min((data_dir / "seq_icu2012" / "records").rglob("*.txt"))
    with pytest.raises(SampleError, match=r"line 2, column 1 \(Time\): '00:00' is no number"):
        numeric.decode_csv(SourceFile.whole(path), LIMITS)
