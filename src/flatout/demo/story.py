"""The story: one method a stage, facts out; whoever calls them prints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from flatout.config import Config, load_config
from flatout.demo.facts import Added, After, Before, Damaged, Mended, Timing
from flatout.demo.heart import heart_sound
from flatout.demo.ordinary import RawRecordings
from flatout.demo.recordings import FILES_A_CLASS, Recordings, make_recordings, recording_path, write_wav
from flatout.errors import ConfigError, SampleError
from flatout.store import DataPreprocessor, Progress, RunStats, StoreReader, VerifyReport, repair, verify
from flatout.types import Array

NUM_EPOCHS = 3

CONFIG = """\
manifest: recordings                  # a folder: each folder in it is a class
preprocessed_data_dir: store
fields:
  sound:
    kind: signal
    column: file
    rate: 2000                        # Hz, from 8000
    band: [25, 400]                   # Hz
    normalise: sample                 # mean 0, deviation 1
    length: 6000                      # 3 s, cut or padded
  label: {kind: label, classes: [AS, MR, MS, MVP, N]}
splits: {stratify: label}
"""

Sample = Mapping[str, Array]
Read = Callable[[str], Sample]
"""A sample's key in, the sample out."""


class Demo:
    """One run of the demo in a folder of its own; call the stages in the order they stand here."""

    def __init__(self, folder: Path, files_a_class: int = FILES_A_CLASS) -> None:
        """Raises ConfigError if there is something in the folder already."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} is not an empty folder; name another one for the demo")
        self.folder = folder
        self.raw, self.store = folder / "recordings", folder / "store"
        self.config_path = folder / "config.yaml"
        self._files_a_class = files_a_class
        self._expected: dict[str, Sample] = {}

    @property
    def config(self) -> Config:
        return load_config(self.config_path)

    def make(self) -> Recordings:
        """The raw files and a config for them."""
        made = make_recordings(self.raw, self._files_a_class)
        self.store.mkdir()
        self.config_path.write_text(CONFIG)
        return made

    def read_before(self) -> Before:
        """Epochs over the raw files, each sample made when it is asked for."""
        raw = RawRecordings(self.config)
        unreadable = []
        for key in raw.keys():  # noqa: SIM118  it is no dict
            try:
                self._expected[key] = raw[key]
            except SampleError:
                unreadable.append(key)
        return Before(time_epochs(raw.__getitem__, list(self._expected)), tuple(unreadable))

    def prepare(self, progress: Progress) -> RunStats:
        """Everything into the store, once."""
        return DataPreprocessor(self.config).run(progress=progress)

    def verify(self, progress: Progress) -> VerifyReport:
        """Every byte of the store."""
        return verify(self.store, progress)

    def read_after(self) -> After:
        """The same epochs from the store; each sample is compared with the ordinary one first."""
        read = open_prepared(self.store)
        differing = [key for key, wanted in self._expected.items() if not is_equal(read(key), wanted)]
        return After(time_epochs(read, list(self._expected)), tuple(differing))

    def damage(self) -> Damaged:
        """Flip one byte of one sample, and verify."""
        store = StoreReader(self.store)
        file, key, byte = flip_byte(store, len(store) // 2)
        return Damaged(file, key, byte, verify(self.store))

    def mend(self, damaged: Damaged, progress: Progress) -> Mended:
        """Repair what is damaged, and verify."""
        stats = repair(self.store, damaged.report, progress)
        report = verify(self.store)
        same_content = report.content_hash == damaged.report.content_hash
        return Mended(stats.processed - stats.failed, report, same_content)

    def add_one(self, progress: Progress) -> Added:
        """One more recording, and prepare again."""
        path = recording_path(self.raw, "N", self._files_a_class)
        write_wav(path, heart_sound("N", self._files_a_class))
        return Added(str(path.relative_to(self.raw)), self.prepare(progress))


def open_prepared(store: Path) -> Read:
    """How a prepared sample is read: by its key, through the store's reader."""
    reader = StoreReader(store)
    position = {key: at for at, key in enumerate(reader.keys())}
    return lambda key: reader.read(position[key])


def time_epochs(read: Read, keys: Sequence[str], num_epochs: int = NUM_EPOCHS) -> Timing:
    """Read every sample once an epoch, each epoch in another order."""
    epochs_s = []
    for epoch in range(num_epochs):
        order = np.random.RandomState(epoch).permutation(len(keys)).tolist()
        started = time.perf_counter()
        for at in order:
            read(keys[at])
        epochs_s.append(time.perf_counter() - started)
    return Timing(len(keys), tuple(epochs_s))


def is_equal(one: Sample, other: Sample) -> bool:
    """Whether two samples have the same fields, bit for bit."""
    if set(one) != set(other):
        return False
    pairs = ((one[name], other[name]) for name in one)
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def flip_byte(store: StoreReader, position: int) -> tuple[str, str, int]:
    """Invert one byte in the middle of a sample's sound, where a failing disk might: (file, key, byte)."""
    sound = store.read(position)["sound"].tobytes()
    name = f"shards/{store.meta.shards[int(store.numbers['shard'][position])].file}"
    path = store.folder / name
    byte = path.read_bytes().index(sound) + len(sound) // 2
    with open(path, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 0xFF]))
    return name, store.keys()[position], byte
