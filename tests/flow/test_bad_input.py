"""Bad files of every format, through the whole pipeline: each is listed with path, stage and reason; the run
goes on, and the good samples are the same as without them."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.flow.formats import FORMATS, MAX_BYTES, Format

from flatout.errors import ManifestError, TooManyBadError
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader
from flatout.store.verification import verify

NUM_GOOD = 12


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
        for name, write in self.form.bad.items():
            write(self._new(name))
        good = self.folder / self.good[0]
        last = sorted(good.iterdir())[-1] if good.is_dir() else good
        for name, data in broken(last.read_bytes(), self.form.takes_any_bytes).items():
            path = self._new(name)
            self.copy(good, path)
            (path / last.name if good.is_dir() else path).write_bytes(data)
        if not good.is_dir():
            self._new("folder").mkdir()
        self._new("missing")
        self._new("link").symlink_to(self.folder / "nowhere")
        os.mkfifo(self._new("pipe"))
        (self.folder.parent / f"outside{self.form.suffix}").write_bytes(last.read_bytes())
        self.bad += [f"../outside{self.form.suffix}", f"/etc/passwd{self.form.suffix}"]

    def copy(self, source: Path, target: Path) -> None:
        """A file with what belongs to it, or a folder."""
        if source.is_dir():
            shutil.copytree(source, target)
            return
        shutil.copy(source, target)
        if half := self.form.other_half:
            shutil.copy(source.with_suffix(half), target.with_suffix(half))

    def path_of(self, key: str, store: str) -> str:
        """Where quarantine says that a row's file is; a member that is not there is in no tar for certain."""
        return f"{self.folder.parent / store}.tar:{key}" if self.form.is_tarred else key

    def settings(self, store: str, rows: list[str], **more: Any) -> dict[str, Any]:
        (self.folder / "rows.csv").write_text("\n".join(["path", *rows]) + "\n")
        if self.form.is_tarred:
            tar_path = self.folder.parent / f"{store}.tar"
            with tarfile.open(tar_path, "w") as tar:
                for name in rows:
                    if os.path.lexists(self.folder / name) and "/" not in name:
                        tar.add(self.folder / name, name, recursive=False)
            more["tarred_audio_filepaths"] = str(tar_path)
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


def broken(whole: bytes, takes_any_bytes: bool) -> dict[str, bytes]:
    """What may have become of a file's bytes on their way."""
    found = {"half": whole[: len(whole) // 2], "few": whole[:7], "empty": b""}
    if not takes_any_bytes:
        found |= {"noise": np.random.default_rng(0).bytes(len(whole)), "zeros": bytes(len(whole))}
    return found


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
        is_member = "no member" not in row["error"]
        assert row["path"] == case.path_of(key, "store") if is_member else row["path"].endswith(f":{key}")
        assert row["stage"] in ("find", "decode", "transform", "check")
        assert len(row["error"]) > 10, row
        assert "Traceback" not in row["error"]
        assert f"quarantined {key} " in log
    assert verify(tmp_path / "store")


WITHOUT_RIGHTS = """
import json, sys
from pathlib import Path
from flatout.store.preprocessor import DataPreprocessor

closed, *configs = json.loads(sys.stdin.read())
try:
    Path(closed).read_bytes()
    sys.exit(77)
except PermissionError:
    pass
for config in configs:
    DataPreprocessor(config).run()
"""


def drop_rights() -> None:
    """Root reads whatever it likes by two capabilities; the program that is started next goes without."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        getattr(libc, "prctl", lambda *_: -1)(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; refused but to root


def test_files_without_permission(tmp_path: Path) -> None:
    configs, closed = [], {}
    for name, form in FORMATS.items():
        if form.is_tarred or importlib.util.find_spec(form.needs) is None:
            continue  # a tar is one file: the manifest is refused
        folder = tmp_path / name.replace(" ", "-")
        (folder / "source").mkdir(parents=True)
        case = Case(folder / "source", form)
        path = case.folder / case.good[3]
        closed[folder] = case.good[3]
        configs.append(case.settings("store", case.good, num_workers=0))
        (sorted(path.iterdir())[-1] if path.is_dir() else path).chmod(0)
    first = next(iter(closed))
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS],
        input=json.dumps([str(first / "source" / closed[first]), *configs]),
        text=True,
        capture_output=True,
        check=False,
        timeout=200,
        preexec_fn=drop_rights,
    )
    if found.returncode == 77:
        pytest.skip("this user may read files of mode 000, whatever is done about it")
    assert found.returncode == 0, found.stderr
    for folder, key in closed.items():
        (row,) = map(json.loads, (folder / "store" / "quarantine.jsonl").read_text().splitlines())
        assert (row["key"], row["stage"]) == (key, "find")
        assert "Permission denied" in row["error"]
        assert len(samples(folder / "store")) == NUM_GOOD - 1


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
        case.copy(source, target)
        damage(draw.choice(sorted(target.iterdir())) if source.is_dir() else target, draw)

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

        with pytest.raises(TooManyBadError, match="all 20 rows failed, so there is nothing to store"):
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
