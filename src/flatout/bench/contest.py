"""flatout against its peers: interleaved rounds over the same files, and equal arrays or no result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from flatout.bench.cases import CASES, Case
from flatout.bench.job import PEERS, Job, read_items, run
from flatout.bench.overhead import Setting, cpu_per_row, make_job, whole_passes
from flatout.bench.sources import SourceFiles
from flatout.errors import FlatoutError, MissingDependencyError
from flatout.store import StoreReader
from flatout.types import Array

OURS = "flatout"
NUM_COMPARED = 200
TOLERANCE = 1e-5
"""Of the largest value of an array, where rounding may differ."""


def check_peers() -> None:
    """Refuse to start without a peer: the best one missing would make every ratio look better.

    Raises:
        MissingDependencyError: naming what is not installed.
    """
    missing = [name for name in (*PEERS, "nibabel", "soundfile", "soxr") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(f"not installed: {', '.join(missing)}; 'make bench' installs the peers")


def measure_contest(case: str, files: SourceFiles, setting: Setting) -> dict[str, Any]:
    """Samples a second of each contestant (median of the rounds), and flatout's ratio to the best peer."""
    per_row = cpu_per_row(case, files, setting, whole_passes(files, 500))
    num_rows = whole_passes(files, setting.seconds / 2 * setting.num_workers / per_row)
    jobs = {name: make_job(name, case, files, setting, num_rows) for name in (OURS, *PEERS)}
    jobs[OURS] = replace(jobs[OURS], what="prepare")
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(setting.rounds):
        for name in _in_turn(list(PEERS), number):
            _clear(jobs.values())
            for contestant in _in_turn([OURS, name], number):
                seconds[contestant].append(run(jobs[contestant]).figures["seconds"])
            if number == 0:
                compare(CASES[case], jobs[OURS], jobs[name])
            setting.say(
                f"{case}, round {number + 1}: {name} {num_rows / seconds[name][-1]:,.0f} samples/s, "
                f"flatout {num_rows / seconds[OURS][-1]:,.0f}"
            )
    _clear(jobs.values())
    rates = {name: num_rows / median(times) for name, times in seconds.items()}
    best = max(rates[name] for name in PEERS)
    return {"rows": num_rows, "samples_per_s": rates, "ratio": rates[OURS] / best, "seconds": seconds}


def compare(case: Case, ours: Job, theirs: Job) -> None:
    """Arrays that a peer stored against those of our store, by key.

    Raises:
        FlatoutError: they differ, so that the contest compares different work.
    """
    store = StoreReader(ours.out)
    positions = {key: at for at, key in enumerate(store.keys())}
    peer = import_module(f"flatout.bench.peer_{theirs.what}")
    num_compared = 0
    for key, array in peer.read(case, read_items(theirs), Path(theirs.out), NUM_COMPARED):
        check_equal(case, f"{theirs.what}, sample {key}", store.read(positions[key])["x"], array)
        num_compared += 1
    if num_compared < min(NUM_COMPARED, len(positions)):
        raise FlatoutError(f"{theirs.what} gave back {num_compared} of {NUM_COMPARED} samples of '{case.name}'")


def check_equal(case: Case, what: str, ours: Array, theirs: Array) -> None:
    """Raise if two contestants' arrays are not the same."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise FlatoutError(f"{what}: {theirs.dtype} {theirs.shape}, ours {ours.dtype} {ours.shape}")
    allowed = 0.0 if case.is_exact else TOLERANCE * float(np.abs(ours).max())
    difference = float(np.abs(ours.astype(np.float64) - theirs).max(initial=0.0))
    if not difference <= allowed:
        raise FlatoutError(f"{what}: arrays differ by {difference:g}, allowed are {allowed:g}")


def _in_turn(names: Sequence[str], number: int) -> Iterator[str]:
    """Each round starts with another one: nobody always runs after the same neighbour."""
    start = number % len(names)
    yield from (*names[start:], *names[:start])


def _clear(jobs: Any) -> None:
    for job in jobs:
        shutil.rmtree(job.out, ignore_errors=True)
