"""History: a model of a manifest, its files and its store, changed at random under a clock of its own.

After each prepare the store must hold what the model says, must not have decoded anything that had not
changed, and must keep every sample in its split.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.store.crashing import Model, check_finished, contents, fast_folder

from flatout.errors import TooManyBadError
from flatout.source import FieldsMaker
from flatout.store import compact, plan
from flatout.store.preprocessor import DataPreprocessor
from flatout.store.reader import StoreReader
from flatout.types import Row

SECOND = 1_000_000_000
CLASSES = "abcdef"


class Killed(BaseException):
    """The run was cut off here."""


@dataclass(frozen=True)
class State:
    """What a sample depends on."""

    seed: int
    label: str
    mtime_ns: int


@dataclass(frozen=True)
class Made:
    """What a committed sample was made from, and whether its file's content was recorded."""

    state: State
    by_content: bool

    def is_current(self, state: State) -> bool:
        if self.by_content:
            return (self.state.seed, self.state.label) == (state.seed, state.label)
        return self.state == state


class History(RuleBasedStateMachine):
    """Random changes and prepares, with the store they must lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=fast_folder()))
        self.clock_ns = 1_700_000_000 * SECOND
        self.rows: dict[str, State] = {}
        self.removed: dict[str, State] = {}
        self.lost: set[str] = set()
        self.made: dict[str, Made] = {}
        self.splits: dict[str, str] = {}
        self.classes: tuple[str, ...] = ()
        self.was_cut_off = False
        self.num_names = self.num_seeds = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # The source and what happens to it

    @initialize(count=st.integers(1, 9))
    def begin(self, count: int) -> None:
        self._add(count, "a", age_s=100)

    @rule(count=st.integers(1, 4), label=st.sampled_from(CLASSES), age_s=st.sampled_from([0, 100]))
    def add_rows(self, count: int, label: str, age_s: int) -> None:
        self._add(count, label, age_s)

    @rule(data=st.data(), age_s=st.sampled_from([0, 50]))
    def change_file(self, data: st.DataObject, age_s: int) -> None:
        name = self._draw(data)
        self._write(name, State(self._seed(), self.rows[name].label, self._time(age_s)))

    @rule(data=st.data())
    def change_file_within_its_time_stamp(self, data: st.DataObject) -> None:
        """Same size, same time; only a content that was recorded can tell."""
        name = self._draw(data)
        if name in self.made and self.made[name].by_content and name not in self.lost:
            old = self.rows[name]
            self._write(name, State(self._seed(), old.label, old.mtime_ns))

    @rule(data=st.data())
    def touch_file(self, data: st.DataObject) -> None:
        name = self._draw(data)
        old = self.rows[name]
        self._write(name, State(old.seed, old.label, self._time(40)))

    @rule(data=st.data(), label=st.sampled_from(CLASSES))
    def change_label(self, data: st.DataObject, label: str) -> None:
        name = self._draw(data)
        self.rows[name] = State(self.rows[name].seed, label, self.rows[name].mtime_ns)

    @rule(data=st.data())
    def lose_file(self, data: st.DataObject) -> None:
        name = self._draw(data)
        (self.folder / name).unlink(missing_ok=True)
        self.lost.add(name)

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def mend_file(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.lost)))
        self._write(name, self.rows[name])

    @precondition(lambda self: len(self.rows) > 2)
    @rule(data=st.data())
    def remove_row(self, data: st.DataObject) -> None:
        name = self._draw(data)
        self.removed[name] = self.rows.pop(name)
        self.lost.discard(name)

    @precondition(lambda self: self.removed)
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.removed)))
        self._write(name, self.removed.pop(name))

    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        old = self._draw(data)
        if old in self.lost:
            return
        new = self._name()
        (self.folder / old).rename(self.folder / new)
        self.rows = {new if name == old else name: state for name, state in self.rows.items()}

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        names = data.draw(st.permutations(sorted(self.rows)))
        self.rows = {name: self.rows[name] for name in names}

    @rule(seconds=st.integers(1, 5))
    def wait(self, seconds: int) -> None:
        self.clock_ns += seconds * SECOND

    # What is done with the store

    @rule(limit=st.none() | st.integers(1, 12))
    def prepare(self, limit: int | None) -> None:
        decoded = self._run(limit=limit)
        if decoded is not None:
            self._check(decoded, self._dirty(), limit)

    @rule()
    def force(self) -> None:
        decoded = self._run(force=True)
        if decoded is not None:
            self.made = {}
            self._check(decoded, set(self.rows), None)

    @rule(num_syncs=st.integers(0, 40), limit=st.none() | st.integers(1, 12), is_forced=st.booleans())
    def cut_off(self, num_syncs: int, limit: int | None, is_forced: bool) -> None:
        """Ends at the n-th durable step; it may have come through before."""
        with cut_off_after(num_syncs):
            decoded = self._run(force=is_forced, limit=limit)
        if decoded is None:
            self._check_cut_off(limit, is_forced)
        else:
            self.made = {} if is_forced else self.made
            self._check(decoded, set(self.rows) if is_forced else self._dirty(), limit)

    @precondition(lambda self: self.made and not self.was_cut_off)
    @rule()
    def compact(self) -> None:
        compact(self.folder / "store")

    @precondition(lambda self: self.made)
    @rule()
    def rebuild(self) -> None:
        """From nothing, elsewhere: the same samples."""
        decoded = self._run()
        if decoded is None:
            return
        self._check(decoded, self._dirty(), None)
        label = {"kind": "label", "classes": list(self.classes)}
        with self._clock():
            pinned = DataPreprocessor(self._settings("pinned", label=label)).run()
            fresh = DataPreprocessor(self._settings("fresh")).run()
        found = StoreReader(self.folder / "store").meta.content_hash
        assert found == pinned.content_hash
        assert contents(self.folder / "fresh") == self._expected()
        # Left to itself it sorts the classes; those that came later have other numbers here.
        sorted_anew = StoreReader(self.folder / "fresh").fields["label"].classes or ()
        used = {made.state.label for made in self.made.values()}
        has_same_numbers = all(sorted_anew.index(name) == self.classes.index(name) for name in used)
        assert (found == fresh.content_hash) is has_same_numbers
        for name in ("pinned", "fresh"):
            shutil.rmtree(self.folder / name)

    # How it is done

    def _add(self, count: int, label: str, age_s: int) -> None:
        for _ in range(count):
            self._write(self._name(), State(self._seed(), label, self._time(age_s)))

    def _name(self) -> str:
        self.num_names += 1
        return f"f{self.num_names:03d}.npy"

    def _time(self, age_s: int) -> int:
        """A moment so long ago that no file had before."""
        return self.clock_ns - age_s * SECOND + self._seed()

    def _seed(self) -> int:
        """Content that no file had before."""
        self.num_seeds += 1
        return self.num_seeds

    def _draw(self, data: st.DataObject) -> str:
        """Any row but the first: one stays good, so that there is always something to prepare."""
        names = sorted(self.rows)
        return data.draw(st.sampled_from(names[1:] or [self._spare()]))

    def _spare(self) -> str:
        self._add(1, "b", age_s=100)
        return sorted(self.rows)[-1]

    def _write(self, name: str, state: State) -> None:
        np.save(self.folder / name, values(state.seed))
        os.utime(self.folder / name, ns=(state.mtime_ns, state.mtime_ns))
        self.rows[name] = state
        self.lost.discard(name)

    def _settings(self, store: str, **more: Any) -> dict[str, Any]:
        label = more.pop("label", {"kind": "label"})
        return {
            "manifest": str(self.folder / "rows.csv"),
            "preprocessed_data_dir": str(self.folder / store),
            "fields": {"x": {"kind": "array", "column": "path"}, "label": label},
            "max_bad_fraction": 1.0,
            "num_workers": 0,
            **more,
        }

    def _run(self, *, force: bool = False, **more: Any) -> set[str] | None:
        """Rows that were decoded; None if the run was cut off."""
        lines = [f"{name},{state.label}" for name, state in self.rows.items()]
        (self.folder / "rows.csv").write_text("\n".join(["path,label", *lines]) + "\n")
        decoded: set[str] = set()
        try:
            with self._clock(), decodes_noted_in(decoded):
                DataPreprocessor(self._settings("store", **more)).run(force)
        except Killed:
            return None
        except TooManyBadError:
            # With a limit there may be no good row to learn the fields from; the version before stays.
            assert set(list(self.rows)[: more["limit"]]) <= self.lost
            self.was_cut_off = True
            return None
        return decoded

    @contextmanager
    def _clock(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flatout.source.look.time", SimpleNamespace(time_ns=lambda: self.clock_ns))
            patch.setattr(plan, "MIN_SHARD_BYTES", 1)
            patch.setattr(plan, "MIN_SHARDS", 3)
            yield

    def _dirty(self) -> set[str]:
        """Rows whose sample is not there, or not from what they are now."""
        made = self.made
        return {
            n for n, state in self.rows.items() if n not in made or not made[n].is_current(state)
        } | self.lost

    def _check(self, decoded: set[str], dirty: set[str], limit: int | None) -> None:
        """The store after a prepare that came through."""
        first = set(list(self.rows)[:limit])
        due = dirty & first
        assert decoded <= (due if limit is None else dirty)  # the first good rows settle forms, limit or not
        if self.was_cut_off:
            # What the run before had finished is there, too, wherever it stands in the manifest.
            due |= dirty & set(StoreReader(self.folder / "store").keys())
        else:
            assert decoded & first in (due, due - self.lost)
        self._commit(due, dirty)
        store = self.folder / "store"
        check_finished(store, self._expected(), sorted(due & self.lost))
        self._check_order(StoreReader(store))

    def _check_cut_off(self, limit: int | None, is_forced: bool) -> None:
        """After a run that was cut off: the version before, or, if that was its last step, the next."""
        self.was_cut_off = True
        if not is_there(self.folder / "store"):
            return
        found = contents(self.folder / "store")
        if found != self._expected():
            dirty = set(self.rows) if is_forced else self._dirty()
            self._commit(dirty & (set(list(self.rows)[:limit]) | set(found)), dirty)
            self.was_cut_off = True
            assert found == self._expected()

    def _expected(self) -> Model:
        return {n: (values(made.state.seed).tolist(), made.state.label) for n, made in self.made.items()}

    def _commit(self, due: set[str], dirty: set[str]) -> None:
        settled_ns = self.clock_ns - 2 * SECOND
        good = {name: state for name, state in self.rows.items() if name not in self.lost}
        self.made = {
            name: Made(state, by_content=state.mtime_ns > settled_ns)
            for name, state in good.items()
            if name in due or name not in dirty
        }
        self.was_cut_off = False

    def _check_order(self, reader: StoreReader) -> None:
        assert reader.keys() == [name for name in self.rows if name in self.made]
        names = [reader.meta.splits[code] for code in reader.numbers["split"]]
        for key, split in zip(reader.keys(), names, strict=True):
            assert self.splits.setdefault(key, split) == split
        classes = reader.fields["label"].classes or ()
        assert len(set(classes)) == len(classes)
        assert classes[: len(self.classes)] == self.classes
        self.classes = classes


def values(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random(5, dtype=np.float32)


def is_there(store: Path) -> bool:
    return (store / "data_metadata.json").exists()


@contextmanager
def decodes_noted_in(decoded: set[str]) -> Iterator[None]:
    make = FieldsMaker.make

    def noting(self: FieldsMaker, row: Row) -> Any:
        decoded.add(row.key)
        return make(self, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FieldsMaker, "make", noting)
        yield


@contextmanager
def cut_off_after(num_syncs: int) -> Iterator[None]:
    """Durable steps after which nothing more happens."""
    fsync, left = os.fsync, [num_syncs]

    def counting(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", counting)
        yield
