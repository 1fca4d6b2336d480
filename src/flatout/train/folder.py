"""The folder of a run: a new one each time, so that none is overwritten, and one for all its processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from flatout.errors import TrainError
from flatout.train.record import CONFIG

SHARED = "_FLATOUT_RUN_FOLDER"
"""Environment variable by which the processes that Lightning starts find the first one's folder."""
_JOB_IDS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")
"""What processes that others start have in common."""


@contextmanager
def run_folder(output_dir: str | Path, *, continued: Path | None, is_shared: bool) -> Iterator[Path]:
    """A new folder `run-0001`, `run-0002`, ... below `output_dir`, or that of the run that goes on.

    A new one that an error leaves with nothing but the config in it is removed.

    Args:
        continued: the folder of a run that goes on.
        is_shared: several processes train; they all get the first one's.

    Raises:
        TrainError: it cannot be made.
    """
    before = os.environ.get(SHARED)
    folder = continued or _find(Path(output_dir))
    is_new = continued is None and before is None and _is_first() and not _files(folder)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    if is_shared:
        os.environ[SHARED] = str(folder.absolute())
    try:
        yield folder
    except BaseException:
        if is_new and _files(folder) <= {folder / CONFIG}:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        if is_shared and before is None:
            os.environ.pop(SHARED, None)


def _is_first() -> bool:
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def _find(output_dir: Path) -> Path:
    if SHARED in os.environ:
        return Path(os.environ[SHARED])
    for name in _JOB_IDS:
        if "LOCAL_RANK" in os.environ and name in os.environ:
            return output_dir / f"run-{os.environ[name]}"
    return _new(output_dir)


def _new(output_dir: Path) -> Path:
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        numbers = [int(f.name[4:]) for f in output_dir.glob("run-*") if f.name[4:].isdigit()]
        for number in range(max(numbers, default=0) + 1, 1 << 31):
            folder = output_dir / f"run-{number:04d}"
            try:
                folder.mkdir()  # another run may have taken the number a moment ago
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise TrainError(f"output_dir: {output_dir} cannot be written: {error.strerror}") from error
    raise TrainError(f"output_dir: {output_dir} is full of runs")
