"""`flatout bench load`: every figure of the loader that the project promises, in one document."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.bench import machine
from flatout.bench.load_cases import LOAD_CASES
from flatout.bench.load_cold import measure_capped, measure_cold
from flatout.bench.load_data import store_of
from flatout.bench.load_feed import measure_accelerator, measure_main_python, measure_many, measure_start
from flatout.bench.load_race import RaceSetting, check_load_peers, race
from flatout.errors import ConfigError

FED_CASES = ("signal", "image")
"""Cases with which the simulated accelerator is fed."""


@dataclass(frozen=True)
class LoadBench:
    """What to measure, and how thoroughly."""

    cases: tuple[str, ...] = tuple(LOAD_CASES)
    seconds: float = 2.0
    """Length of one round of one contestant."""
    rounds: int = 5
    share: float = 1.0
    """Share of each case's samples; below 1 only for a quick look."""
    num_samples: int = 10_000_000
    """Samples of the store in which any point is resumed; 0 leaves it out."""
    accelerator_ms: tuple[float, ...] = ()
    """Further step times of the simulated accelerator."""
    main_python_ms: tuple[float, ...] = ()
    """Further step times of the busy main thread."""
    has_cold: bool = True
    has_peers: bool = False
    scratch: Path | None = None
    """Folder for temporary data, on the disk that is to be measured; None: the system's."""


def bench_load(options: LoadBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure; a document of plain numbers out.

    Raises:
        ConfigError: a case does not exist.
        MissingDependencyError: a peer is not installed.
        FlatoutError: a contestant failed, or delivered other arrays.
    """
    if unknown := set(options.cases) - set(LOAD_CASES):
        raise ConfigError(f"no case '{unknown.pop()}'; there are: {', '.join(LOAD_CASES)}")
    if options.has_peers:
        check_load_peers()
    document: dict[str, Any] = {"cases": {}, "options": _described(options)}
    with tempfile.TemporaryDirectory(prefix="flatout-bench-", dir=options.scratch) as folder:
        document["machine"] = machine.describe(Path(folder))
        for name in options.cases:
            document["cases"] |= _race(name, options, Path(folder) / name, say)
        document |= _feeding(document["cases"], options, Path(folder), say)
        if options.num_samples:
            say(f"many: building a store of {options.num_samples:,} samples")
            document["many"] = measure_many(Path(folder), options.num_samples)
        if options.has_cold:
            document |= _cold(Path(folder), options, say)
    return document


def _described(options: LoadBench) -> dict[str, Any]:
    return {"seconds": options.seconds, "rounds": options.rounds, "share": options.share}


def _race(name: str, options: LoadBench, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    folder.mkdir()
    setting = RaceSetting(folder, options.seconds, options.rounds, options.share, say)
    try:
        return race(LOAD_CASES[name].scaled(options.share), setting, options.has_peers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _feeding(
    cases: dict[str, Any], options: LoadBench, folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Utilisation, waiting and the start of an epoch, with one store a case."""
    found: dict[str, dict[str, Any]] = {"accelerator": {}, "main_python": {}, "start": {}}
    for name in FED_CASES:
        if name not in options.cases:
            continue
        case = LOAD_CASES[name].scaled(options.share)
        store = store_of(folder / f"fed-{name}", case, case.shards[name])
        limit = cases[name]["limit"]["samples_per_s"]
        found["accelerator"][name] = measure_accelerator(
            store, case, limit, options.accelerator_ms, options.rounds
        )
        found["main_python"][name] = measure_main_python(store, case, options.main_python_ms, options.rounds)
        found["start"][name] = measure_start(store, case)
        say(
            f"{name}: accelerator at least {found['accelerator'][name]['lowest']:.1%} busy, "
            f"busy main thread waits {found['main_python'][name]['highest']:.1%}"
        )
    return found


def _cold(folder: Path, options: LoadBench, say: Callable[[str], None]) -> dict[str, Any]:
    cold = measure_cold(folder, options.rounds)
    for name, each in cold.items():
        parts = [f"{how.replace('_', '-')} {each[how]:.2f}" for how in ("global", "shard_local", "announced")]
        say(f"cold {name}: {', '.join(parts)} of sequential")
    capped = measure_capped(folder, options.rounds)
    say(f"capped: {capped.get('skipped') or format(capped['ratio'], '.2f')}")
    return {"cold": cold, "capped": capped}
