"""The clinic's scripts: which disease each of them has, and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.errors import ConfigError, FlatoutError

PATIENTS = {
    "slow_decode": "slow_decode",
    "small_files": "small_files",
    "scipy_augment": "augmentation",
    "no_workers": "too_few_workers",
    "too_many_workers": "too_many_workers",
    "huge_collate": "huge_collate",
    "log_each_step": "logging",
    "evaluate_often": "evaluation",
    "restart_workers": "worker_restart",
    "compute_bound": "compute",
    "cold_disk": "cold_disk",
    "slow_sample": "slow_sample",
    "oversized_padding": "padding",
    "slow_iterable": "slow_iterable",
    "lightning_decode": "slow_decode",
    "healthy_memory": "healthy",
    "healthy_workers": "healthy",
}
"""Script and the word that the verdict must say of it."""
CLINIC = Path(__file__).resolve().parents[3] / "benchmarks" / "clinic"


def choose_patients(names: Sequence[str], folder: Path = CLINIC) -> dict[str, Path]:
    """Names and scripts, of all of them if none is named.

    Raises:
        ConfigError: a name is not one of them.
        FlatoutError: the folder is not there; it is part of the repository and not of the package.
    """
    if unknown := [name for name in names if name not in PATIENTS]:
        raise ConfigError(f"the clinic has no script '{unknown[0]}'; there are: {', '.join(PATIENTS)}")
    if not folder.is_dir():
        raise FlatoutError(f"{folder} is not there: the clinic is run from a checkout of the repository")
    return {name: folder / f"{name}.py" for name in names or PATIENTS}
