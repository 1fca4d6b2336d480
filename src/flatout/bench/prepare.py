"""`flatout bench prepare`: every figure of a prepare that the project promises, in one document."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flatout.bench import machine
from flatout.bench.cases import CASES
from flatout.bench.contest import OURS, check_peers, measure_contest
from flatout.bench.index import measure_index
from flatout.bench.job import PEERS
from flatout.bench.overhead import Setting, measure_efficiency, measure_safety
from flatout.bench.sources import SourceFiles, find_files

EFFICIENCY = {"nifti": "nifti_resampled", "wav": "wav"}
"""Name of the figure -> the case it is measured with."""


@dataclass(frozen=True)
class PrepareBench:
    """What to measure, and how thoroughly."""

    seconds: float = 20.0
    """Length of one timed job with perfect efficiency."""
    rounds: int = 3
    """Every figure is the median of so many interleaved rounds."""
    num_samples: int = 10_000_000
    """Samples of the store that is opened; 0 leaves this part out."""
    num_workers: int | None = None
    """Worker processes; None: as many as cores."""
    data: Path | None = None
    """Folder with real samples; None: `../shared/data` where it is, else generated files."""
    scratch: Path | None = None
    """Folder for temporary output, on the disk that is to be measured; None: the system's."""
    has_peers: bool = False


def bench_prepare(options: PrepareBench, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Measure; a document of plain numbers out.

    Raises:
        MissingDependencyError: a peer is not installed.
        FlatoutError: a contestant failed, or the contestants' arrays differ.
    """
    if options.has_peers:
        check_peers()
    num_workers = options.num_workers or machine.count_cores()
    with tempfile.TemporaryDirectory(prefix="flatout-bench-", dir=options.scratch) as folder:
        setting = Setting(Path(folder), num_workers, options.seconds, options.rounds, say)
        files = {kind: find_files(kind, options.data, setting.scratch) for kind in ("nifti", "wav")}
        document = {"machine": machine.describe(setting.scratch), "options": _described(options, num_workers)}
        document["files"] = {kind: {"count": len(f.paths), "is_real": f.is_real} for kind, f in files.items()}
        document |= _overheads(files, setting)
        if options.num_samples:
            document["index"] = measure_index(options.num_samples, setting)
        if options.has_peers:
            document |= _contests(files, setting)
    return document


def _described(options: PrepareBench, num_workers: int) -> dict[str, Any]:
    return {"seconds": options.seconds, "rounds": options.rounds, "num_workers": num_workers}


def _overheads(files: dict[str, SourceFiles], setting: Setting) -> dict[str, Any]:
    found = {n: measure_efficiency(case, files[n], setting) for n, case in EFFICIENCY.items()}
    per_row = {n: each["rounds"][-1]["cpu_s"] / each["rows"] for n, each in found.items()}
    safety = {n: measure_safety(case, files[n], setting, per_row[n]) for n, case in EFFICIENCY.items()}
    return {
        "efficiency": {n: each["efficiency"] for n, each in found.items()},
        "efficiency_limit": {n: each["limit"] for n, each in found.items()},
        "efficiency_bare": {n: each["bare"] for n, each in found.items()},
        "efficiency_required": {n: each["required"] for n, each in found.items()},
        "safety_overhead": max(each["overhead"] for each in safety.values()),
        "worker_memory": found["nifti"]["worker_memory"],
        "update": {
            "rows": found["wav"]["rows"],
            "unchanged_s": found["wav"]["unchanged_s"],
            "scan_rows_per_s": found["wav"]["scan_rows_per_s"],
        },
        "details": {"efficiency": found, "safety": safety},
    }


def _contests(files: dict[str, SourceFiles], setting: Setting) -> dict[str, Any]:
    found = {name: measure_contest(name, files[case.files], setting) for name, case in CASES.items()}
    rates = {
        contestant: {name: {"samples_per_s": each["samples_per_s"][contestant]} for name, each in found.items()}
        for contestant in (OURS, *PEERS)
    }
    return {
        "flatout": rates.pop(OURS),
        "peers": rates,
        "ratio_to_best_peer": {name: each["ratio"] for name, each in found.items()},
        "contests": found,
    }
