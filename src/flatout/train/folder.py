"""The folder of a run: a new one each time, so that none is overwritten, and one for all its processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

from flatout.errors import TrainError
from flatout.train.record import CHECKPOINTS, CONFIG

SHARED = "_FLATOUT_RUN_FOLDER"
"""Environment variable by which the processes that Lightning starts find the first one's folder."""
NO_ID = "none"
"""What torchrun calls a run to which nobody has given an id (`--rdzv-id`)."""
INTERACTIVE = ("bash", "interactive")
"""Jobs of SLURM in whose shell one starts what one likes; Lightning knows them by the same names."""
PATIENCE = timedelta(minutes=10)
"""Ranks open the same data before they ask for the folder; a store on a slow disk may take some minutes."""
_num_agreed = count()
"""Every rank trains as many times as the others: each time has its own folder."""


@contextmanager
def run_folder(output_dir: str | Path, *, continued: Path | None, is_shared: bool) -> Iterator[Path]:
    """A new folder `run-0001`, `run-0002`, ... below `output_dir`, or that of the run that goes on.

    A new one that an error leaves with nothing but the config in it is removed; of one that goes on, empty
    folders that were not there before.

    Args:
        continued: the folder of a run that goes on.
        is_shared: several processes train; they all get the first one's.

    Raises:
        TrainError: it cannot be made.
    """
    before = os.environ.get(SHARED)
    folder = continued or _find(Path(output_dir))
    is_new = continued is None and before is None and _is_first() and not _files(folder)
    known = _folders(folder)
    (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    if is_shared:
        os.environ[SHARED] = str(folder.absolute())
    try:
        yield folder
    except BaseException:
        if is_new and _files(folder) <= {folder / CONFIG}:
            shutil.rmtree(folder, ignore_errors=True)
        for made in sorted(_folders(folder) - known, reverse=True):  # what is inside another comes first
            with suppress(OSError):  # it is not empty
                made.rmdir()
        raise
    finally:
        if is_shared and before is None:
            os.environ.pop(SHARED, None)


def _is_first() -> bool:
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def _folders(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_dir()}


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir()}


def _find(output_dir: Path) -> Path:
    if SHARED in os.environ:
        return Path(os.environ[SHARED])
    if _is_by_torchrun() and os.environ["TORCHELASTIC_RUN_ID"] == NO_ID:
        return _agreed(output_dir)
    job = _job()
    return _new(output_dir) if job is None else output_dir / f"run-{job}"


def _is_by_torchrun() -> bool:
    return "LOCAL_RANK" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ


def _job() -> str | None:
    """What the processes that a launcher has started have in common, also when it starts them again."""
    if _is_by_torchrun():
        return os.environ["TORCHELASTIC_RUN_ID"]
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    if job is None or os.environ.get("SLURM_JOB_NAME") in INTERACTIVE:
        return None
    if step is not None and int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
        return f"{job}-{step}"  # a job may train several times, each by an srun of its own
    return job if "LOCAL_RANK" in os.environ else None


def _agreed(output_dir: Path) -> Path:
    """The first rank's new folder, told by torchrun's store, which is still there when ranks start again."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return _new(output_dir)
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # not in every build

    key = f"flatout/{output_dir.absolute()}/{next(_num_agreed)}"
    try:
        store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=PATIENCE)
        if os.environ["RANK"] == "0" and not store.check([key]):
            store.set(key, str(_new(output_dir)))
        return Path(store.get(key).decode())
    except DistError as error:
        raise TrainError(f"output_dir: the first rank did not tell the folder of the run: {error}") from error


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
