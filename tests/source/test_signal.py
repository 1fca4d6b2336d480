"""The signal kind: the order of its steps, each of its settings, and what it refuses."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.config.fields import SignalField
from flatout.errors import ConfigError, SampleError
from flatout.source import sound, waveform
from flatout.source.files import SourceFile
from flatout.source.numeric import decode_csv, decode_npy
from flatout.source.signal import channels_first, make_steps
from flatout.types import Array, Context, Decoded, Limits, Pieces, Row

RNG = np.random.default_rng(0)


def run(
    decoded: Decoded, row: dict[str, Any] | None = None, resolve: Any = None, **settings: Any
) -> Array | Pieces:
    context = Context(Row("k", row or {}), resolve=resolve)
    outputs = make_steps("x", SignalField(**settings), {})(decoded, context)
    assert list(outputs) == ["x"]
    return outputs["x"]


def run_whole(decoded: Decoded, **settings: Any) -> Array:
    found = run(decoded, **settings)
    assert isinstance(found, np.ndarray)
    return found


def run_pieces(decoded: Decoded, **settings: Any) -> tuple[Array, ...]:
    found = run(decoded, **settings)
    assert isinstance(found, Pieces)
    return found.arrays


def noise(num_samples: int = 8000, num_channels: int = 1, rate: float = 8000.0) -> Decoded:
    array = RNG.uniform(-0.5, 0.5, (num_channels, num_samples)).astype(np.float32)
    return Decoded(array, rate=rate, info={"full_scale": (-1.0, 1.0)})


def beats(period_s: float = 0.8, num_beats: int = 6, rate: float = 2000.0) -> Decoded:
    time = np.arange(round(period_s * num_beats * rate)) / rate
    phase = time % period_s
    array = np.exp(-0.5 * ((phase - 0.1) / 0.03) ** 2) * np.sin(2 * np.pi * 60 * time)
    return Decoded(array[None].astype(np.float32), rate=rate)


def test_nothing_set_changes_nothing():
    decoded = noise()
    found = run_whole(decoded)
    np.testing.assert_array_equal(found, decoded.array)
    assert found.dtype == np.float32


def test_steps_come_in_their_order():
    decoded = noise(16000, num_channels=2)
    found = run_whole(
        decoded,
        row={"start": 0.25, "seconds": 1.0},
        offset_column="start",
        duration_column="seconds",
        channels="mean",
        rate=2000,
        band=(25, 400),
        normalise="sample",
        length=1500,
    )
    signal = decoded.array[:, 2000:10000].mean(axis=0, keepdims=True)
    signal = waveform.resample(signal, 8000, 2000, Limits())
    signal = waveform.filter_band(signal, waveform.design_band(25, 400, 4, 2000.0))
    signal = (signal - signal.mean()) / signal.std()
    np.testing.assert_allclose(found, signal[:, :1500], atol=1e-5)


@pytest.mark.parametrize(
    ("length", "fit"), [(5000, "trim_pad"), (12000, "trim_pad"), (4000, "resample"), (9000, "resample")]
)
def test_length_is_met(length, fit):
    assert run_whole(noise(), length=length, fit=fit).shape == (1, length)


def test_dtype_is_met():
    assert run_whole(noise(), dtype="float64").dtype == np.float64
    scaled = run_whole(noise(), dtype="int16", normalise="fixed", std=1 / 32767)
    assert scaled.dtype == np.int16
    assert np.abs(scaled).max() > 1
    with pytest.raises(ConfigError, match="no NumPy dtype"):
        run(noise(), dtype="sound")


@pytest.mark.parametrize("dtype", ["int16", "int32", "bool"])
def test_a_sound_is_not_stored_as_integers_of_minus_1_to_1(dtype):
    with pytest.raises(SampleError, match=r"have fractions .*dtype .* holds none.*encoding: int16"):
        run_whole(noise(), dtype=dtype)
    with pytest.raises(SampleError, match="have fractions"):
        run(noise(), dtype=dtype, split="windows", length=100)
    for normalise in ("sample", "percentile", "unit"):
        with pytest.raises(ConfigError, match="gives fractions"):
            run(noise(), dtype=dtype, normalise=normalise)


def test_integers_stay_integers_behind_filters():
    integers = Decoded(np.random.default_rng(0).integers(-999, 999, (1, 4000)), rate=8000.0)
    assert run_whole(integers, dtype="int16").tolist() == integers.array.tolist()
    for settings in ({"rate": 4000}, {"band": (20, 400)}):
        exact = run_whole(integers, dtype="float64", **settings)
        np.testing.assert_array_equal(run_whole(integers, dtype="int16", **settings), np.rint(exact))


@pytest.mark.parametrize("mode", ["sample", "percentile"])
@pytest.mark.parametrize("settings", [{}, {"rate": 4000}, {"band": (20, 400)}])
def test_a_constant_is_refused_also_behind_filters(mode, settings):
    decoded = Decoded(np.full((1, 8000), 0.3, np.float32), rate=8000.0)
    with pytest.raises(SampleError, match="constant"):
        run(decoded, normalise=mode, **settings)


def test_unit_spans_what_the_recording_can_hold():
    decoded = noise()
    np.testing.assert_allclose(run_whole(decoded, normalise="unit"), (decoded.array + 1) / 2, rtol=1e-6)
    integers = Decoded(np.array([[-32768, 0, 32767]], np.int16))
    np.testing.assert_allclose(run_whole(integers, normalise="unit"), [[0, 32768 / 65535, 1]])
    with pytest.raises(SampleError, match="no range of their own"):
        run(Decoded(np.zeros((1, 9), np.float32)), normalise="unit")


def test_nan_passes_to_the_finite_check_without_a_warning():
    decoded = noise()
    decoded.array[0, 5] = np.inf
    decoded.array[0, 6] = np.nan
    for settings in (
        {},
        {"rate": 4000},
        {"band": (20, 400)},
        {"normalise": "sample"},
        {"normalise": "percentile"},
    ):
        assert not np.isfinite(run_whole(decoded, **settings)).all()


@given(st.integers(1, 3), st.integers(1, 40))
def test_layouts(num_channels, num_samples):
    wide = np.arange(num_channels * num_samples).reshape(num_channels, num_samples)
    np.testing.assert_array_equal(channels_first(Decoded(wide, rate=1.0)), wide)
    np.testing.assert_array_equal(channels_first(Decoded(wide.T, info={"columns": None})), wide)
    assert channels_first(Decoded(wide[0])).shape == (1, num_samples)
    if num_samples > num_channels:  # of an npy the longer axis is time
        np.testing.assert_array_equal(channels_first(Decoded(wide)), wide)
        np.testing.assert_array_equal(channels_first(Decoded(wide.T)), wide)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("i2", "f4"),
        ("u1", "f4"),
        ("f2", "f4"),
        ("f4", "f4"),
        ("i4", "f8"),
        ("f8", "f8"),
        (">f8", "f8"),
        ("g", "f8"),
    ],
)
def test_numbers_become_floats_that_hold_them(dtype, expected):
    assert channels_first(Decoded(np.ones((1, 9), dtype))).dtype == expected


@pytest.mark.parametrize(
    "array", [np.zeros((2, 3, 4)), np.float32(1), np.array(["a"]), np.ones(3, complex), np.empty((1, 0))]
)
def test_other_arrays_are_refused(array):
    with pytest.raises(SampleError) as caught:
        run(Decoded(np.asarray(array)))
    assert caught.value.stage == "check"


def test_npy_and_csv_take_their_rate_from_the_config(tmp_path):
    array = RNG.normal(size=(1000, 2))
    np.save(tmp_path / "a.npy", array)
    np.savetxt(tmp_path / "a.csv", array, delimiter=",")
    limits = Limits()
    from_npy = decode_npy(SourceFile.whole(tmp_path / "a.npy"), limits)
    from_csv = decode_csv(SourceFile.whole(tmp_path / "a.csv"), limits)
    for decoded in (from_npy, from_csv):
        found = run_whole(decoded, source_rate=500.0, rate=250, channels="keep")
        assert found.shape == (2, 500)
        np.testing.assert_allclose(found, waveform.resample(array.T, 500, 250, Limits()), atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{"rate": 100}, {"band": (1, 2)}, {"split": "cycles"}, {"offset_column": "start"}]
)
def test_unknown_rate_names_the_setting(settings):
    with pytest.raises(SampleError, match="source_rate"):
        run(Decoded(np.ones((1, 900))), row={"start": 1.0}, **settings)


def test_rate_of_the_file_wins_over_source_rate():
    assert run_whole(noise(8000, rate=8000.0), source_rate=1.0, rate=4000).shape == (1, 4000)


@pytest.mark.parametrize(
    "settings",
    [
        {"band": (10, 1000), "rate": 2000},
        {"band": (100, 50)},
        {"band": (-1, 50)},
        {"split": "windows"},
        {"percentiles": (90, 10)},
        {"percentiles": (0, 101)},
        {"cycle_range_s": (1.5, 0.4)},
    ],
)
def test_impossible_settings_are_found_when_planning(settings):
    with pytest.raises(ConfigError, match="field 'x'"):
        make_steps("x", SignalField(**settings), {})


def test_band_beyond_the_files_rate_is_found_with_the_file():
    with pytest.raises(SampleError, match="only 500 Hz"):
        run(noise(rate=1000.0), band=(20, 600))


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_segment_without_values_is_the_whole(value):
    row = {"start": value, "seconds": value}
    found = run_whole(noise(), row=row, offset_column="start", duration_column="seconds")
    assert found.shape == (1, 8000)


@pytest.mark.parametrize(
    ("start", "seconds"), [(0.9, 0.2), (1.0, None), (-0.1, None), (0, -1), ("x", None), (0, np.inf), ([1], 1)]
)
def test_segment_outside_is_refused(start, seconds):
    with pytest.raises(SampleError):
        run(
            noise(),
            row={"start": start, "seconds": seconds},
            offset_column="start",
            duration_column="seconds",
        )


def test_windows_side_by_side_and_overlapping():
    decoded = noise(1000, num_channels=2)
    windows = run_pieces(decoded, channels="keep", split="windows", length=300)
    np.testing.assert_array_equal(np.concatenate(windows, axis=1), decoded.array[:, :900])
    assert all(window.flags.c_contiguous for window in windows)
    assert len(run_pieces(decoded, channels="first", split="windows", length=300, hop=100)) == 8
    assert len(run_pieces(decoded, channels="first", split="windows", length=300, remainder="pad")) == 4


def test_short_signal_and_windows():
    with pytest.raises(SampleError, match="shorter than one window of 2,000"):
        run(noise(1000), split="windows", length=2000)
    assert run_pieces(noise(1000), split="windows", length=2000, remainder="pad")[0].shape == (1, 2000)


def test_cycles_are_found_and_fitted():
    found = run_pieces(beats(), split="cycles")
    assert abs(len(found) - 6) <= 1
    assert all(piece.shape[1] == pytest.approx(1600, rel=0.05) for piece in found)
    for fit in ("trim_pad", "resample"):
        assert {piece.shape for piece in run_pieces(beats(), split="cycles", length=1234, fit=fit)} == {
            (1, 1234)
        }


def test_cycles_from_start_times_at_another_rate():
    decoded = beats()
    pieces = run_pieces(decoded, row={"c": "0.0 0.8 1.6"}, split="cycles", cycle_column="c", rate=1000)
    whole = run_whole(decoded, rate=1000)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole[:, :1600])
    assert [piece.shape[1] for piece in pieces] == [800, 800]


def test_cycles_of_a_segment_are_those_inside_it():
    settings = {
        "split": "cycles",
        "cycle_column": "c",
        "offset_column": "start",
        "duration_column": "seconds",
    }
    row = {"c": [0.0, 0.8, 1.6, 2.4], "start": 0.5, "seconds": 1.5}
    decoded = beats()
    pieces = run_pieces(decoded, row=row, **settings)
    assert len(pieces) == 1
    np.testing.assert_array_equal(pieces[0], decoded.array[:, 1600:3200])


def test_cycles_from_an_annotation_file(tmp_path):
    path = tmp_path / "rec.tsv"
    path.write_text("0\t0.1\t0\n0.1\t0.2\t1\n0.2\t0.5\t2\n0.5\t0.6\t3\n0.6\t0.9\t4\n0.9\t1.0\t1\n1.0\t4.8\t0\n")

    def resolve(text: str) -> SourceFile:
        assert text == "rec.tsv"
        return SourceFile.whole(path)

    settings: dict[str, Any] = {"split": "cycles", "cycle_column": "c", "row": {"c": "rec.tsv"}}
    decoded = beats()
    pieces = run_pieces(decoded, resolve=resolve, **settings)
    assert len(pieces) == 1
    np.testing.assert_array_equal(pieces[0], decoded.array[:, 200:1800])
    with pytest.raises(SampleError, match="has no files"):
        run(decoded, **settings)
    path.write_text("start\tend\tstate\nnot\ta\tnumber\n")
    with pytest.raises(SampleError, match="line 2, column 1"):
        run(decoded, resolve=resolve, **settings)


@pytest.mark.parametrize("value", [None, "", float("nan")])
def test_row_without_annotation_falls_back_to_the_envelope(value):
    found = run_pieces(beats(), row={"c": value}, split="cycles", cycle_column="c")
    assert len(found) == len(run_pieces(beats(), split="cycles"))


def test_annotation_of_another_recording_is_refused():
    with pytest.raises(SampleError, match=r"the signal at 4\.800 s"):
        run(beats(), row={"c": "0.0 5.5"}, split="cycles", cycle_column="c")


def test_silence_has_no_cycles():
    with pytest.raises(SampleError, match="no cycle"):
        run(Decoded(np.zeros((1, 8000), np.float32), rate=2000.0), split="cycles")


def test_real_heart_sounds_go_all_the_way(data_dir):
    field = SignalField(rate=2000, band=(25, 400), normalise="sample", split="cycles", length=2500)
    steps = make_steps("x", field, {})
    num_pieces = []
    for path in sorted((data_dir / "heart_yaseen").glob("*/*.wav"))[::11]:
        decoded = sound.decode(SourceFile.whole(path), Limits())
        try:
            pieces = steps(decoded, Context(Row("k", {})))["x"]
        except SampleError:  # a few hold one beat and silence
            num_pieces.append(0)
            continue
        assert isinstance(pieces, Pieces)
        assert all(piece.shape == (1, 2500) and np.isfinite(piece).all() for piece in pieces.arrays)
        num_pieces.append(len(pieces.arrays))
    assert np.mean(np.array(num_pieces) >= 2) > 0.9


def test_real_speech_segments_of_its_own_manifest(data_dir):
    folder = data_dir / "speech_fsdd"
    steps = make_steps("x", SignalField(duration_column="duration", rate=16000), {})
    for line in (folder / "manifest_test.jsonl").read_text().splitlines()[:40]:
        row = json.loads(line)
        decoded = sound.decode(SourceFile.whole(folder / row["audio_filepath"]), Limits())
        found = steps(decoded, Context(Row("k", row)))["x"]
        assert isinstance(found, np.ndarray)
        assert found.shape[1] == pytest.approx(row["duration"] * 16000, abs=400)


def test_steps_travel_to_workers_and_repeat_exactly():
    steps = make_steps("x", SignalField(rate=3000, band=(20, 400), normalise="percentile"), {})
    decoded = noise()
    first = steps(decoded, Context(Row("k", {})))["x"]
    again = pickle.loads(pickle.dumps(steps))(decoded, Context(Row("k", {})))["x"]
    np.testing.assert_array_equal(first, again)


def test_plain_signals_never_load_scipy_or_soundfile():
    code = (
        "import sys, numpy as np\n"
        "from flatout.config.fields import SignalField\n"
        "from flatout.source import sound, signal\n"
        "from flatout.types import Context, Decoded, Row\n"
        "steps = signal.make_steps('x', SignalField(normalise='sample', length=10), {})\n"
        "steps(Decoded(np.arange(9.0)), Context(Row('k', {})))\n"
        "print(sorted({'scipy', 'soundfile', 'soxr', 'torch', 'pyarrow', 'h5py'} & set(sys.modules)))\n"
    )
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout.strip() == "[]"
