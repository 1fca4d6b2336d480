"""Sound files of every kind: exact values, and no damage that gets through as anything but a SampleError."""

from __future__ import annotations

import io
import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import MissingDependencyError, SampleError
from flatout.source import registry, sound
from flatout.source.files import SourceFile
from flatout.types import Decoded, Limits

LIMITS = Limits()
RNG = np.random.default_rng(7)
NOISE = RNG.uniform(-1, 1, (900, 2))
FORMATS = {
    "pcm16": ("WAV", "PCM_16"),
    "pcm24": ("WAV", "PCM_24"),
    "float": ("WAV", "FLOAT"),
    "extensible": ("WAVEX", "PCM_16"),
    "adpcm": ("WAV", "MS_ADPCM"),
    "rf64": ("RF64", "PCM_16"),
    "rifx": ("WAV", "PCM_16", "BIG"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
}


def encode(frames: np.ndarray, container: str, subtype: str, endian: str = "FILE", rate: int = 8000) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, frames, rate, format=container, subtype=subtype, endian=endian)
    return stream.getvalue()


def decode(tmp_path: Path, data: bytes, limits: Limits = LIMITS) -> Decoded:
    path = tmp_path / "sample.wav"
    path.write_bytes(data)
    return sound.decode(SourceFile.whole(path), limits)


def pcm16(frames: np.ndarray, rate: int = 8000) -> bytes:
    """A WAV by the standard library, as a user without soundfile writes it."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(frames.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(frames.astype("<i2").tobytes())
    return stream.getvalue()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT"])
@pytest.mark.parametrize("num_channels", [1, 2, 5])
def test_plain_wav_is_read_without_soundfile_and_bit_equal_to_it(tmp_path, monkeypatch, subtype, num_channels):
    frames = RNG.uniform(-1, 1, (1001, num_channels))
    frames[0], frames[1] = 1.0, -1.0
    data = encode(frames, "WAV", subtype, rate=11025)
    expected, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    decoded = decode(tmp_path, data)
    assert decoded.array.dtype == np.float32
    assert decoded.array.flags.c_contiguous
    np.testing.assert_array_equal(decoded.array, expected.T)
    assert decoded.rate == rate


@given(
    st.binary(min_size=12, max_size=240),
    st.sampled_from([16, 24, 32]),
)
def test_any_integers_equal_libsndfile(raw: bytes, bits: int):
    raw = raw[: len(raw) // 12 * 12]
    head = struct.pack("<HHIIHH", sound.PCM, 1, 8000, 8000 * bits // 8, bits // 8, bits)
    body = b"WAVEfmt " + struct.pack("<I", 16) + head + b"data" + struct.pack("<I", len(raw)) + raw
    data = b"RIFF" + struct.pack("<I", len(body)) + body
    layout = sound.parse_wav(data, "x.wav")
    assert layout.is_plain
    expected, _ = sound.read_any(data, "x.wav", LIMITS)
    np.testing.assert_array_equal(sound.read_plain(data, layout, "x.wav", LIMITS), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_equals_soundfile(tmp_path, name):
    data = encode(NOISE, *FORMATS[name], rate=16000)
    expected, _ = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    decoded = decode(tmp_path, data)
    np.testing.assert_array_equal(decoded.array, expected.T)
    assert decoded.rate == 16000


def test_real_heart_sounds_equal_soundfile(data_dir):
    paths = sorted((data_dir / "heart_yaseen").glob("*/*.wav"))[::5]
    assert paths
    for path in paths:
        expected, rate = soundfile.read(path, dtype="float32", always_2d=True)
        decoded = sound.decode(SourceFile.whole(path), LIMITS)
        assert decoded.rate == rate == 8000
        np.testing.assert_array_equal(decoded.array, expected.T)


def test_member_of_an_archive_is_read_by_its_range(tmp_path):
    data = pcm16(np.arange(100)[:, None])
    path = tmp_path / "archive.tar"
    path.write_bytes(b"x" * 512 + data + b"y" * 100)
    decoded = sound.decode(SourceFile(path, "a.wav", 512, len(data)), LIMITS)
    np.testing.assert_array_equal(decoded.array, np.arange(100, dtype=np.float32)[None] / 32768)


def test_other_chunks_are_stepped_over(tmp_path):
    data = pcm16(np.arange(50)[:, None])
    extra = b"LIST" + struct.pack("<I", 5) + b"hello\0"
    decoded = decode(tmp_path, data[:12] + extra + data[12:])
    assert decoded.array.shape == (1, 50)


def test_missing_soundfile_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'flatout\[audio\]'"):
        decode(tmp_path, encode(NOISE, "FLAC", "PCM_16"))


def test_soundfile_without_its_shared_library_is_missing_too(tmp_path, monkeypatch):
    def fail(name: str) -> None:
        raise OSError("sndfile library not found")

    monkeypatch.setattr(registry, "import_module", fail)
    with pytest.raises(MissingDependencyError, match="soundfile is not installed"):
        decode(tmp_path, encode(NOISE, "FLAC", "PCM_16"))


@pytest.mark.parametrize("name", sorted({*FORMATS} - {"float"}))  # all that are smaller on disk
def test_cap_holds_before_decoding(tmp_path, name):
    data = encode(np.zeros((20_000, 2)), *FORMATS[name])
    limits = Limits(max_sample_bytes=20_000 * 2 * 4 - 1)
    with pytest.raises(SampleError, match="limit"):
        decode(tmp_path, data, limits)


@pytest.mark.parametrize("name", FORMATS)
def test_no_frames_is_an_error(tmp_path, name):
    with pytest.raises(SampleError):
        decode(tmp_path, encode(np.zeros((0, 2)), *FORMATS[name]))


@pytest.mark.parametrize("name", FORMATS)
def test_truncated_anywhere_is_an_error(tmp_path, name):
    data = encode(NOISE, *FORMATS[name])
    for length in {*range(100), *np.linspace(100, len(data) - 1, 60, dtype=int).tolist()}:
        with pytest.raises(SampleError):
            decode(tmp_path, data[:length])


@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bytes_give_a_sample_error_or_an_array(tmp_path, name):
    rng = np.random.default_rng(3)
    data = encode(NOISE, *FORMATS[name])
    for _ in range(200):
        damaged = bytearray(data)
        # Half of them in the header, where a flip does more than noise.
        top = min(80, len(data)) if rng.random() < 0.5 else len(data)
        damaged[rng.integers(top)] ^= 1 << rng.integers(8)
        try:
            decoded = decode(tmp_path, bytes(damaged))
        except SampleError:
            continue
        assert decoded.array.dtype == np.float32
        assert decoded.array.ndim == 2
        assert decoded.array.size > 0


def test_wav_that_claims_4_gib_is_refused(tmp_path):
    data = bytearray(pcm16(np.arange(100)[:, None]))
    struct.pack_into("<I", data, 40, 0xFFFFFFF0)
    with pytest.raises(SampleError, match="4,294,967,280 bytes of sound"):
        decode(tmp_path, bytes(data))


def test_flac_that_claims_too_many_frames_is_refused(tmp_path):
    data = bytearray(encode(NOISE, "FLAC", "PCM_16"))
    data[21] |= 0x0F  # the upper bits of the 36-bit number of frames
    with pytest.raises(SampleError, match="limit"):
        decode(tmp_path, bytes(data))


def test_flac_without_a_length_is_refused(tmp_path):
    data = bytearray(encode(NOISE, "FLAC", "PCM_16"))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    with pytest.raises(SampleError, match="does not state its length"):
        decode(tmp_path, bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"RIFF", b"RIFF\0\0\0\0AVI ", b"\x89PNG\r\n", b"ID3\x04", b"FORM\0\0\0\0AIFF"]
)
def test_other_files_are_refused(tmp_path, data):
    with pytest.raises(SampleError):
        decode(tmp_path, data)


def test_rate_of_zero_is_refused(tmp_path):
    data = bytearray(pcm16(np.arange(100)[:, None]))
    struct.pack_into("<I", data, 24, 0)
    with pytest.raises(SampleError, match="0 samples a second"):
        decode(tmp_path, bytes(data))


def test_one_flipped_bit_anywhere_in_an_ogg_is_noticed(tmp_path: Path) -> None:
    data = encode(np.sin(np.arange(40_000) / 9)[:, None] * RNG.uniform(0, 1, (40_000, 1)), "OGG", "VORBIS")
    assert data.count(b"OggS") > 3
    places = [100, len(data) // 2, len(data) - 100, *RNG.integers(0, len(data), 40).tolist()]
    for place in places:
        broken = bytearray(data)
        broken[place] ^= 1
        with pytest.raises(SampleError, match=r"damaged|breaks off"):
            decode(tmp_path, bytes(broken))


def test_an_ogg_is_pages_and_nothing_else(tmp_path: Path) -> None:
    data = encode(NOISE, "OGG", "VORBIS")
    with pytest.raises(SampleError, match=rf"damaged: no page starts at byte {len(data):,}"):
        decode(tmp_path, data + bytes(40))
    for kept in (len(data) - 1, data.rindex(b"OggS") + 10, data.rindex(b"OggS")):
        with pytest.raises(SampleError, match="breaks off"):
            decode(tmp_path, data[:kept])


@pytest.mark.parametrize(
    ("tag", "bits", "block_bytes"), [(1, 7, 2), (1, 16, 1), (1, 24, 4), (1, 16, 0), (3, 64, 4)]
)
def test_a_wav_whose_header_contradicts_itself_is_refused(
    tag: int, bits: int, block_bytes: int, tmp_path: Path
) -> None:
    data = bytearray(pcm16(np.arange(800)[:, None]))
    at = data.index(b"fmt ") + 8
    struct.pack_into("<HHIIHH", data, at, tag, 1, 8000, 8000 * block_bytes, block_bytes, bits)
    with pytest.raises(
        SampleError, match=rf"frames of {block_bytes} bytes by its header; 1 channels of {bits} bits"
    ):
        decode(tmp_path, bytes(data))
