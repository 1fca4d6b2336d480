"""Rows come, change, go and come back, runs are cut off: a store is always what a full rebuild would give."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from tests.store.crashing import Source, age, check_finished, contents, shard_hashes
from tests.store.history import History, Killed, decodes_noted_in

from flatout.errors import TooManyBadError
from flatout.source import FieldsMaker, files, load_object
from flatout.store import plan
from flatout.store.journal import Journal, MadeRows
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader
from flatout.store.receipt import Receipt
from flatout.store.statistics import RunStats
from flatout.store.verification import verify
from flatout.types import Row


def for_a_while(max_examples: int, num_steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=num_steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class LongHistory(History):
    """The same for longer."""


History.TestCase.settings = for_a_while(20, 20)
LongHistory.TestCase.settings = for_a_while(150, 40)
TestHistory = History.TestCase
TestLongHistory = pytest.mark.slow(pytest.mark.timeout(3000)(LongHistory.TestCase))


class Told:
    """A progress that keeps what it was told, and may end the run."""

    def __init__(self, cut_off_at: int | None = None) -> None:
        self.texts: list[str] = []
        self._left = cut_off_at

    def begin(self, what: str, total: int) -> None:
        return

    def advance(self, rows: int) -> None:
        if self._left is not None and rows > 0:
            self._left -= rows
            if self._left < 0:
                raise Killed

    def bad(self, rows: int) -> None:
        return

    def say(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path / "source")


@pytest.fixture(autouse=True)
def shards_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """One or two rows a shard in the small sets below."""
    monkeypatch.setattr(plan, "MIN_SHARD_BYTES", 1)
    monkeypatch.setattr(plan, "MIN_SHARDS", 6)


def run(settings_: dict[str, Any], *, cut_off_at: int | None = None, **options: Any) -> set[str]:
    """One prepare, cut off after some rows or not; the rows it decoded."""
    decoded: set[str] = set()
    with decodes_noted_in(decoded):
        try:
            DataPreprocessor(settings_).run(progress=Told(cut_off_at), **options)
            assert cut_off_at is None
        except Killed:
            assert cut_off_at is not None
    return decoded


def open_labels(settings_: dict[str, Any]) -> dict[str, Any]:
    """The same settings with classes collected from the manifest."""
    return {**settings_, "fields": {**settings_["fields"], "label": {"kind": "label"}}}


class TestAfterACut:
    """What another run finds: finished shards are used, and only as far as they are true."""

    def test_samples_of_another_form_than_the_committed_ones(self, source: Source, tmp_path: Path) -> None:
        """Every file is made anew with more values: what is finished of that is not made twice."""
        source.add(range(12))
        config = source.settings(tmp_path / "store")
        run(config)
        for number in range(12):
            key = f"s{number:04d}.npy"
            values = np.random.default_rng(number).random(40, dtype=np.float32)
            np.save(source.folder / key, values)
            age(source.folder / key, 1)
            source.model[key] = values.tolist(), source.model[key][1]
        with cut_off_after_receipts(2):
            run(config, cut_off_at=1000)
        told = Told()
        DataPreprocessor(config).run(progress=told)
        assert any("continuing: 2 of" in text for text in told.texts)
        check_finished(tmp_path / "store", source.model)

    def test_files_just_written_give_the_same_shards_after_a_cut(
        self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are known by content first, and by time when the run goes on."""
        source.add(range(12))
        whole = tmp_path / "whole"
        run(source.settings(whole))
        now_s = max(path.stat().st_mtime for path in source.folder.glob("*.npy")) + 1
        clock = SimpleNamespace(time_ns=lambda: int(now_s * 1e9))
        monkeypatch.setattr("flatout.source.look.time", clock)
        config = source.settings(tmp_path / "store")
        with cut_off_after_receipts(2):
            run(config, cut_off_at=1000)
        now_s += 60
        told = Told()
        DataPreprocessor(config).run(progress=told)
        assert any("continuing: 2 of" in text for text in told.texts)
        assert shard_hashes(tmp_path / "store") == shard_hashes(whole)
        check_finished(tmp_path / "store", source.model)

    def test_a_row_that_moved_is_made_again_after_a_cut(self, source: Source, tmp_path: Path) -> None:
        """Though its file is then what it was when the run was planned."""
        source.add(range(12))
        config = source.settings(tmp_path / "store", checksum=True)
        read, good = files._read, (source.folder / "s0001.npy").read_bytes()
        num_reads = [0]

        def torn(descriptor: int, size: int) -> bytes:
            found = read(descriptor, size)
            num_reads[0] += found == good
            if found == good and num_reads[0] == 3:  # after its form was looked at, and its content
                source.add([1], seed=5)
                return (source.folder / "s0001.npy").read_bytes()
            return found

        with pytest.MonkeyPatch.context() as patch, cut_off_after_receipts(3):
            patch.setattr(files, "_read", torn)
            run(config, cut_off_at=1000)
        source.add([1])
        run(config)
        check_finished(tmp_path / "store", source.model)

    def test_a_changed_manifest_keeps_what_is_finished(self, source: Source, tmp_path: Path) -> None:
        source.add(range(12))
        config = source.settings(tmp_path / "store")
        run(config, cut_off_at=8)
        source.add([50])

        decoded = run(config)

        check_finished(tmp_path / "store", source.model)
        assert "s0050.npy" in decoded
        assert len(decoded) == 5

    def test_a_second_cut_loses_nothing(self, source: Source, tmp_path: Path) -> None:
        source.add(range(12))
        config = source.settings(tmp_path / "store")
        run(config, cut_off_at=8)
        for number in range(50, 53):
            source.add([number])
            run(config, cut_off_at=0)

        decoded = run(config)

        check_finished(tmp_path / "store", source.model)
        assert len(decoded) == 7

    def test_a_row_that_changed_since_is_made_again(self, source: Source, tmp_path: Path) -> None:
        source.add(range(12))
        config = source.settings(tmp_path / "store")
        run(config, cut_off_at=8)
        source.add([2], seed=1)
        run(config, cut_off_at=0)

        run(config)

        check_finished(tmp_path / "store", source.model)

    def test_a_label_that_changed_and_changed_back(self, source: Source, tmp_path: Path) -> None:
        source.add(range(12))
        config = source.settings(tmp_path / "store")
        run(config, cut_off_at=8)
        values_, label = source.model["s0003.npy"]
        for name, cut in (("c", 3), (label, 1), ("c", 0), (label, None)):
            source.model["s0003.npy"] = values_, name
            source.write()
            run(config, cut_off_at=cut)

        check_finished(tmp_path / "store", source.model)

    @pytest.mark.parametrize("limit", [None, 12])
    def test_a_new_class_does_not_move_the_others(
        self, source: Source, tmp_path: Path, limit: int | None
    ) -> None:
        """The finished shards have c as 1; a class b that comes between must not make it 2."""
        source.add(range(12))
        source.model = {key: (data, "ac"[at % 2]) for at, (key, (data, _)) in enumerate(source.model.items())}
        source.write()
        config = open_labels(source.settings(tmp_path / "store", limit=limit))
        run(config, cut_off_at=8)
        source.add([99])
        source.model["s0099.npy"] = source.model["s0099.npy"][0], "b"
        source.write()

        decoded = run(config)

        assert StoreReader(tmp_path / "store").fields["label"].classes == ("a", "c", "b")
        if limit:
            del source.model["s0099.npy"]
        check_finished(tmp_path / "store", source.model)
        assert len(decoded) == (4 if limit else 5)

    def test_a_new_class_in_an_update(self, source: Source, tmp_path: Path) -> None:
        source.add(range(12))
        config = open_labels(source.settings(tmp_path / "store"))
        run(config)
        source.add(range(20, 32))
        source.model = {k: (v, "0new" if k == "s0020.npy" else c) for k, (v, c) in source.model.items()}
        source.write()
        run(config, cut_off_at=8)
        source.add([77])

        decoded = run(config)

        assert StoreReader(tmp_path / "store").fields["label"].classes == ("a", "b", "c", "0new")
        check_finished(tmp_path / "store", source.model)
        assert len(decoded) == 5

    def test_force_does_not_use_what_was_not_forced(self, source: Source, tmp_path: Path) -> None:
        source.add(range(12))
        config = source.settings(tmp_path / "store")
        run(config, cut_off_at=8)

        assert run(config, force=True, cut_off_at=8) == {f"s{number:04d}.npy" for number in range(10)}
        assert len(run(config, force=True)) == 4
        assert len(run(config, force=True)) == 12
        check_finished(tmp_path / "store", source.model)

    def test_bad_rows_are_tried_again_and_stand_once(self, source: Source, tmp_path: Path) -> None:
        """They fail, the run is cut off; the disk is mended in between; another cut; then all goes well."""
        source.add(range(12))
        config = source.settings(tmp_path / "store", max_bad_fraction=1.0)
        hidden = [source.folder / "s0001.npy", source.folder / "s0004.npy"]
        with pytest.MonkeyPatch.context() as patch:
            make = FieldsMaker.make

            def failing(self: FieldsMaker, row: Row) -> Any:
                if str(source.folder / row.key) in map(str, hidden):
                    raise OSError(5, "Input/output error")
                return make(self, row)

            patch.setattr(FieldsMaker, "make", failing)
            run(config, cut_off_at=8)
            hidden.pop()
            with cut_off_after_receipts(3):
                run(config, cut_off_at=1000)
            hidden.pop()
            with cut_off_after_receipts(1):
                run(config, cut_off_at=1000)

        stats = DataPreprocessor(config).run()

        check_finished(tmp_path / "store", source.model)
        assert (stats.processed, stats.failed) == (12, 0)

    def test_the_old_list_of_bad_rows_goes(self, source: Source, tmp_path: Path) -> None:
        """Too many bad rows leave a list of them, which is not damage, and no part of the next version."""
        source.add(range(20))
        config = source.settings(tmp_path / "store")
        run(config)
        for number in range(5):
            (source.folder / f"s{number:04d}.npy").rename(source.folder / f"{number}.away")

        with pytest.raises(TooManyBadError, match=r"quarantine\.jsonl"):
            DataPreprocessor(config).run()
        assert len((tmp_path / "store" / "quarantine.jsonl").read_text().splitlines()) >= 2
        assert verify(tmp_path / "store")
        assert contents(tmp_path / "store") == source.model

        for number in range(5):
            (source.folder / f"{number}.away").rename(source.folder / f"s{number:04d}.npy")
        assert run(config) == set()
        check_finished(tmp_path / "store", source.model)


@contextmanager
def cut_off_after_receipts(count: int) -> Iterator[None]:
    """Ends the run when the journal has noted so many tasks."""
    append, left = Journal.append, [count]

    def counting(self: Journal, receipt: Receipt, made: MadeRows) -> None:
        append(self, receipt, made)
        left[0] -= 1
        if not left[0]:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", counting)
        yield


class TestSplits:
    def test_another_name_for_the_same_rows(self, source: Source, tmp_path: Path) -> None:
        source.add(range(6))
        config = {**source.settings(tmp_path / "store"), "splits": {"column": "split"}}
        for name in ("val", "test"):
            lines = [f"{key},{label},{name}" for key, (_, label) in source.model.items()]
            source.manifest.write_text("\n".join(["path,label,split", *lines]) + "\n")
            run(config)

            reader = StoreReader(tmp_path / "store")
            assert reader.meta.splits == (name,)
            assert len(reader.positions(name)) == 6

    def test_no_row_moves_because_others_come_and_go(self, source: Source, tmp_path: Path) -> None:
        source.add(range(40))
        config = source.settings(tmp_path / "store")
        run(config)
        before = splits_of(tmp_path / "store")
        source.remove(range(0, 40, 3))
        source.add(range(100, 140))
        run(config)

        after = splits_of(tmp_path / "store")

        assert len(set(before.values())) == 3
        assert all(after[key] == split for key, split in before.items() if key in after)


def splits_of(store: Path) -> dict[str, str]:
    reader = StoreReader(store)
    names = [reader.meta.splits[code] for code in reader.numbers["split"]]
    return dict(zip(reader.keys(), names, strict=True))


class TestWhatHasChanged:
    def test_a_file_that_changes_while_it_is_read(self, source: Source, tmp_path: Path) -> None:
        """Its bytes are read, and before that is over others have been written."""
        source.add(range(4))
        config = source.settings(tmp_path / "store")
        read, num_reads = files._read, [0]

        def changing(descriptor: int, size: int) -> bytes:
            found = read(descriptor, size)
            num_reads[0] += Path(f"/proc/self/fd/{descriptor}").readlink().name == "s0002.npy"
            if num_reads[0] == 2:  # the first time its form is looked at
                source.add([2], seed=1)
                num_reads[0] += 1
            return found

        told = Told()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "_read", changing)
            DataPreprocessor(config).run(progress=told)
        assert any("1 files changed while they were read" in text for text in told.texts)

        assert run(config) == {"s0002.npy"}
        check_finished(tmp_path / "store", source.model)
        assert run(config) == set()

    def test_a_file_that_changes_after_it_was_read(self, source: Source, tmp_path: Path) -> None:
        """It is recorded as it was when it was read, so the next run sees that it is another one."""
        source.add(range(4))
        config = source.settings(tmp_path / "store")
        make = FieldsMaker.make

        def changing(self: FieldsMaker, row: Row) -> Any:
            found = make(self, row)
            if row.key == "s0002.npy":
                source.add([2], seed=1)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FieldsMaker, "make", changing)
            run(config)

        assert run(config) == {"s0002.npy"}
        check_finished(tmp_path / "store", source.model)
        assert run(config) == set()

    def test_checksums_see_content_alone(self, source: Source, tmp_path: Path) -> None:
        source.add(range(4))
        config = source.settings(tmp_path / "store", checksum=True)
        run(config)
        age(source.folder / "s0001.npy", 9)
        assert run(config) == set()
        stat = (source.folder / "s0002.npy").stat()
        source.add([2], seed=1)
        os.utime(source.folder / "s0002.npy", ns=(stat.st_atime_ns, stat.st_mtime_ns))

        assert run(config) == {"s0002.npy"}
        check_finished(tmp_path / "store", source.model)

    def test_a_run_that_is_cut_off_behind_its_root_has_made_everything(
        self, source: Source, tmp_path: Path
    ) -> None:
        """Its plan is still there, and knows files by content that the root knows by time."""
        source.add(range(4))
        for number in range(4):
            os.utime(source.folder / f"s{number:04d}.npy")  # now: their content counts
        config = source.settings(tmp_path / "store")
        run(config)
        later = SimpleNamespace(time_ns=lambda: time.time_ns() + 10**10)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flatout.source.look.time", later)
            source.add([4])
            patch.setattr("flatout.store.journal.discard", Mock(side_effect=Killed))
            with pytest.raises(Killed):
                DataPreprocessor(config).run()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flatout.source.look.time", later)
            assert run(config) == set()
        check_finished(tmp_path / "store", source.model)

    def test_the_first_checksums_say_why_everything_is_made_again(self, source: Source, tmp_path: Path) -> None:
        source.add(range(4))
        for number in range(4):
            age(source.folder / f"s{number:04d}.npy", 100)
        run(source.settings(tmp_path / "store"))
        config = source.settings(tmp_path / "store", checksum=True)
        for num_made in (4, 0):
            told = Told()
            assert DataPreprocessor(config).run(progress=told).processed == num_made
            assert any(f"making {num_made} rows again" in text for text in told.texts) == (num_made > 0)

    def test_rows_without_files_are_not_made_again_for_their_checksums(self, tmp_path: Path) -> None:
        (tmp_path / "m.csv").write_text("id,x\n" + "".join(f"r{n},{n}\n" for n in range(5)))
        config = {
            "manifest": str(tmp_path / "m.csv"),
            "preprocessed_data_dir": str(tmp_path / "store"),
            "fields": {"x": {"kind": "scalar"}},
            "num_workers": 0,
        }
        run(config)
        told = Told()
        assert DataPreprocessor({**config, "checksum": True}).run(progress=told).processed == 0
        assert not any("again" in text for text in told.texts)

    def test_settings_of_a_field(self, source: Source, tmp_path: Path) -> None:
        source.add(range(4))
        config = source.settings(tmp_path / "store")
        run(config)
        config["fields"]["x"]["dtype"] = "float64"
        told = Told()

        stats = DataPreprocessor(config).run(progress=told)

        assert (stats.processed, stats.unchanged) == (4, 0)
        assert any("making every sample again" in text and "dtype" in text for text in told.texts)
        assert StoreReader(tmp_path / "store").read(0)["x"].dtype == "float64"


TRANSFORM = """
import numpy as np

def make(row, factor=1.0):
    return {{"x": np.load(row["path"]) * {scale} * factor}}
"""


class TestTransform:
    """A transform's code and parameters are part of what makes a sample."""

    @pytest.fixture
    def config(self, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as most people have it
        monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        self.write(tmp_path, scale=1)
        source.add(range(6))
        config = source.settings(tmp_path / "store")
        del config["fields"]
        return {**config, "transform": "flatout_test_transform:make"}

    def write(self, folder: Path, scale: int) -> None:
        (folder / "flatout_test_transform.py").write_text(TRANSFORM.format(scale=scale))
        sys.modules.pop("flatout_test_transform", None)
        load_object.cache_clear()
        importlib.invalidate_caches()

    def run(self, config: dict[str, Any], **options: Any) -> tuple[RunStats, str]:
        told = Told()
        stats = DataPreprocessor(config).run(progress=told, **options)
        return stats, " ".join(told.texts)

    def factors(self, source: Source, store: Path) -> list[float]:
        """How many times its file's values each sample is."""
        reader = StoreReader(store)
        pairs = [(reader.read(at)["x"], source.model[key][0]) for at, key in enumerate(reader.keys())]
        return [round(float(np.median(x / np.array(values_))), 3) for x, values_ in pairs]

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_code_changes(
        self, source: Source, tmp_path: Path, config: dict[str, Any], num_workers: int
    ) -> None:
        config["num_workers"] = num_workers
        self.run(config)
        self.write(tmp_path, scale=3)

        stats, told = self.run(config)

        assert (stats.processed, stats.unchanged) == (6, 0)
        assert "flatout_test_transform.py changed" in told
        assert "--accept-fingerprint" in told
        assert self.factors(source, tmp_path / "store") == [3.0] * 6
        assert self.run(config)[0].unchanged == 6

    def test_code_changes_and_is_accepted(self, source: Source, tmp_path: Path, config: dict[str, Any]) -> None:
        self.run(config)
        self.write(tmp_path, scale=3)
        source.add([6])

        stats, told = self.run(config, accept_fingerprint=True)

        assert (stats.processed, stats.unchanged) == (1, 6)
        assert "kept all samples although flatout_test_transform.py changed" in told
        assert self.factors(source, tmp_path / "store") == [1.0] * 6 + [3.0]
        assert self.run(config)[0].unchanged == 7

    def test_parameters_change(self, source: Source, tmp_path: Path, config: dict[str, Any]) -> None:
        self.run(config)

        stats, told = self.run({**config, "transform_params": {"factor": 2.0}})

        assert stats.processed == 6
        assert "factor" in told
        assert self.factors(source, tmp_path / "store") == [2.0] * 6

    def test_a_cut_and_back_to_the_old_code(
        self, source: Source, tmp_path: Path, config: dict[str, Any]
    ) -> None:
        """Shards of another code are never used, whichever way it goes."""
        self.run(config)
        self.write(tmp_path, scale=3)
        with pytest.raises(Killed):
            DataPreprocessor(config).run(progress=Told(4))
        self.write(tmp_path, scale=1)
        stats, _ = self.run(config)
        assert (stats.processed, stats.unchanged) == (0, 6)
        assert self.factors(source, tmp_path / "store") == [1.0] * 6

        self.write(tmp_path, scale=5)
        with pytest.raises(Killed):
            DataPreprocessor(config).run(progress=Told(4))
        self.write(tmp_path, scale=7)
        assert self.run(config)[0].processed == 6
        assert self.factors(source, tmp_path / "store") == [7.0] * 6
