"""The demo tells the truth: its data is what it says, each stage's claim is checked, its table adds up."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import wave
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flatout.cli import demo_command
from flatout.cli.main import main
from flatout.demo import Added, Demo, Outcome
from flatout.demo.facts import Timing
from flatout.demo.heart import CLASSES, RATE_HZ, heart_sound, murmur_envelope
from flatout.demo.recordings import BROKEN, break_file, make_recordings, write_wav
from flatout.demo.story import flip_byte, is_equal, open_prepared
from flatout.errors import ConfigError, SampleError
from flatout.source.files import SourceFile
from flatout.source.sound import decode
from flatout.store import StoreReader, verify
from flatout.store.progress import Silent
from flatout.types import Limits

FILES_A_CLASS = 20
BROKEN_HERE = sorted(name for name in BROKEN if int(name[-7:-4]) < FILES_A_CLASS)


@pytest.fixture(scope="module")
def in_caller() -> Iterator[None]:
    """No worker processes: their start would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLATOUT_NUM_WORKERS", "0")
        yield


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, in_caller: None) -> tuple[Demo, Outcome]:
    demo = Demo(tmp_path_factory.mktemp("demo") / "all", FILES_A_CLASS)
    made, before = demo.make(), demo.read_before()
    prepared, verified, after = demo.prepare(Silent()), demo.verify(Silent()), demo.read_after()
    damaged = demo.damage()
    mended, added = demo.mend(damaged, Silent()), demo.add_one(Silent())
    return demo, Outcome(made, before, prepared, verified, after, damaged, mended, added)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, in_caller: None) -> None:
    """The command runs on a fifth of the files."""
    monkeypatch.setattr(demo_command, "Demo", partial(Demo, files_a_class=FILES_A_CLASS))


@pytest.mark.parametrize("kind", CLASSES)
def test_a_heart_sound_is_always_the_same(kind: str) -> None:
    first, again, other = heart_sound(kind, 3), heart_sound(kind, 3), heart_sound(kind, 4)
    assert first.tobytes() == again.tobytes() != other.tobytes()
    assert first.dtype == np.int16
    assert 2 * RATE_HZ <= len(first) <= 4 * RATE_HZ
    assert 0.7 * 32767 < np.abs(first.astype(int)).max() < 32767


def test_each_diagnosis_has_its_murmur() -> None:
    phase_s = np.linspace(0.0, 1.0, 1000, endpoint=False)
    heard = {kind: murmur_envelope(kind, phase_s, 1.0, 0.35) for kind in CLASSES}
    assert all(e.min() >= 0.0 and e.max() <= 1.0 for e in heard.values())
    assert not heard["N"].any()
    is_systole = phase_s < 0.35
    for kind in ("AS", "MR", "MVP"):
        assert heard[kind][is_systole].any(), kind
        assert not heard[kind][~is_systole].any(), kind
    assert heard["MS"][~is_systole].any()
    assert not heard["MS"][is_systole].any()


def test_the_standard_library_reads_all_but_the_broken_files(tmp_path: Path) -> None:
    made = make_recordings(tmp_path / "raw", FILES_A_CLASS)
    assert (made.num_files, sorted(made.broken)) == (5 * FILES_A_CLASS, BROKEN_HERE)
    assert made.num_bytes == sum(file.stat().st_size for file in (tmp_path / "raw").rglob("*.wav"))
    for file in (tmp_path / "raw").rglob("*.wav"):
        if str(file.relative_to(tmp_path / "raw")) not in made.broken:
            with wave.open(str(file)) as sound:
                assert sound.getframerate() == RATE_HZ


def test_every_broken_file_is_broken_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    for how in set(BROKEN.values()):
        write_wav(path, heart_sound("N", 0))
        assert decode(SourceFile.whole(path), Limits()).array.any()
        break_file(path, how)
        if how == "silent":
            assert not decode(SourceFile.whole(path), Limits()).array.any()
        else:
            with pytest.raises(SampleError):
                decode(SourceFile.whole(path), Limits())


def test_every_promise_is_kept(told: tuple[Demo, Outcome]) -> None:
    _, outcome = told
    assert outcome.problems() == []
    assert list(outcome.bad_found) == BROKEN_HERE == sorted(outcome.before.unreadable)
    assert outcome.mended.rows_made < outcome.prepared.num_samples
    assert outcome.added.stats.unchanged == outcome.prepared.num_samples == 5 * FILES_A_CLASS - len(BROKEN_HERE)


def test_before_and_after_read_equally_many_samples(told: tuple[Demo, Outcome]) -> None:
    _, outcome = told
    before, after = outcome.before.timing, outcome.after.timing
    assert before.num_samples == after.num_samples == outcome.prepared.num_samples
    assert len(before.epochs_s) == len(after.epochs_s)


def test_every_broken_promise_is_noticed(told: tuple[Demo, Outcome]) -> None:
    _, good = told
    damaged, mended, added = good.damaged, good.mended, good.added
    wrong = [
        replace(good, recordings=replace(good.recordings, broken=())),
        replace(good, verified=damaged.report),
        replace(good, after=replace(good.after, differing=("a",))),
        replace(good, damaged=replace(damaged, key="another")),
        replace(good, mended=replace(mended, same_content=False)),
        replace(good, mended=replace(mended, report=damaged.report)),
        replace(good, added=Added(added.file, good.prepared)),
    ]
    assert [len(outcome.problems()) for outcome in wrong] == [1] * len(wrong)
    assert not wrong[0].to_json()["ok"]


def test_the_arithmetic_of_the_summary(told: tuple[Demo, Outcome]) -> None:
    _, outcome = told
    slow, fast = Timing(100, (4.0, 2.0, 3.0)), Timing(100, (0.5, 0.25, 0.3))
    made = replace(
        outcome,
        before=replace(outcome.before, timing=slow),
        after=replace(outcome.after, timing=fast),
        prepared=replace(outcome.prepared, wall_s=4.0),
    )
    assert (slow.samples_per_s, fast.samples_per_s) == (50.0, 400.0)
    assert made.factor == 8.0
    assert made.epochs_to_pay == 3  # 4.0 s / (2.0 - 0.25) s an epoch
    assert replace(made, after=replace(made.after, timing=slow)).epochs_to_pay is None


def test_equal_means_every_bit() -> None:
    one = {"sound": np.array([0.0, 1.0], np.float32)}
    assert is_equal(one, {"sound": one["sound"].copy()})
    assert not is_equal(one, {"sound": np.array([-0.0, 1.0], np.float32)})
    assert not is_equal(one, {"sound": one["sound"].astype(np.float64)})
    assert not is_equal(one, {**one, "label": np.array(1)})


def test_one_byte_is_flipped_and_no_other(told: tuple[Demo, Outcome]) -> None:
    demo, _ = told
    store = StoreReader(demo.store)
    files = {path: path.read_bytes() for path in sorted((demo.store / "shards").glob("*.h5"))}
    file, key, byte = flip_byte(store, 7)
    changed = {path: path.read_bytes() for path, data in files.items() if path.read_bytes() != data}
    (path,) = changed
    differing = [at for at, (a, b) in enumerate(zip(files[path], changed[path], strict=True)) if a != b]
    assert (path, differing, key) == (demo.store / file, [byte], store.keys()[7])
    assert [(d.file, d.key) for d in verify(demo.store).damage] == [(file, key)]
    path.write_bytes(files[path])
    assert verify(demo.store)


def test_a_prepared_sample_is_found_by_its_key(told: tuple[Demo, Outcome]) -> None:
    demo, _ = told
    sample = open_prepared(demo.store)("MS/MS_000.wav")
    assert sample["sound"].shape == (1, 6000)
    assert CLASSES[int(sample["label"])] == "MS"


def test_the_demo_never_touches_a_folder_with_something_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not an empty folder"):
        Demo(tmp_path)
    assert main(["demo", "--output", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.usefixtures("small")
def test_json_is_one_document_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert document["bad_found"] == BROKEN_HERE
    rates = document["after"]["samples_per_s"] / document["before"]["samples_per_s"]
    assert document["factor"] == pytest.approx(rates)
    assert document["added"]["made"] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_the_story_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Outcome, "problems", lambda self: ["something was not as promised"])
    assert main(["demo", "--output", str(tmp_path / "kept")]) == 1
    printed = capsys.readouterr()
    assert "something was not as promised" in printed.err
    for word in (
        "Before",
        "Prepare",
        "Verify",
        "After",
        "Damage",
        "New data",
        "samples a second",
        *BROKEN_HERE,
    ):
        assert word in printed.out, word
    assert f"flatout stats {tmp_path / 'kept' / 'store'}" in printed.out.replace("\n", "")
    assert verify(tmp_path / "kept" / "store")


def test_it_needs_no_extra() -> None:
    """`pip install flatout` alone runs the demo: no sound, image or medical library is there."""
    code = (
        "import sys\n"
        "for name in ('soundfile', 'soxr', 'nibabel', 'pydicom', 'pylibjpeg', 'skimage', 'ray', 'monai'):\n"
        "    sys.modules[name] = None\n"
        "from functools import partial\n"
        "from flatout.cli import demo_command\n"
        "from flatout.cli.main import main\n"
        f"demo_command.Demo = partial(demo_command.Demo, files_a_class={FILES_A_CLASS})\n"
        "sys.exit(main(['demo', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"FLATOUT_NUM_WORKERS": "0", "PATH": ""},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
