"""Where views are kept: a folder of the user's, or one in memory that goes with its bank."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import IO

from flatout.store.limits import free_bytes

MEMORY = Path("/dev/shm")
"""A file system that lives in memory, where there is one."""
PRIVATE = "flatout-views-"
OWNER = "owner.lock"
_HAS_LOCKS = os.name == "posix"
_GENERATION = re.compile(r"epoch-([0-9]{6,})")
TENSORS = ".pt"
PARTS = ".parts"
"""What a file of tensors is put together from: a store beside it, until the file is whole."""


class PrivateFolder:
    """A folder for views of so many bytes: in memory if they fit there, else among temporary files.

    It is removed with this object, or at the end of the process. One that a killed process leaves behind is
    removed by the next bank: the kernel's lock on a file in it tells that nobody holds it any more.
    """

    def __init__(self, num_bytes: int) -> None:
        parents = [parent for parent in (MEMORY, Path(tempfile.gettempdir())) if _is_usable(parent)]
        for parent in parents:
            sweep(parent)
        fitting = [parent for parent in parents if free_bytes(parent) > num_bytes]
        self.path = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=next(iter([*fitting, *parents[-1:]]), None)))
        lock = _locked(self.path / f"{OWNER}.new")
        (self.path / f"{OWNER}.new").rename(self.path / OWNER)  # locked before anybody can look for it
        self.remove = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())


def sweep(parent: Path) -> None:
    """Remove the private folders whose owners are gone; where locks tell who is."""
    if not _HAS_LOCKS:
        return
    for folder in parent.glob(f"{PRIVATE}*"):
        with suppress(OSError):  # held, another user's, or just being removed
            if (folder / OWNER).exists():
                _remove(folder, _locked(folder / OWNER))


def generation_folder(folder: Path, epoch: int) -> Path:
    """Where the views drawn for an epoch lie."""
    return folder / f"epoch-{epoch:06d}"


def work_folder(output: Path) -> Path:
    """Where precomputed views are made, and found again after a stop: a store."""
    return output.with_name(output.name + PARTS) if output.suffix == TENSORS else output


def generations(folder: Path) -> dict[int, Path]:
    """Folders of views by the epoch they are drawn for, finished or not."""
    found = {path: _GENERATION.fullmatch(path.name) for path in folder.glob("epoch-*")}
    return {int(name[1]): path for path, name in found.items() if name}


def remove_generation(path: Path) -> None:
    """Remove one; whoever has it open keeps what is mapped. Windows may keep files until they are closed."""
    shutil.rmtree(path, ignore_errors=True)


def _is_usable(parent: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=parent):
            return True
    except OSError:
        return False


def _locked(path: Path) -> IO[bytes]:
    """The file, locked until it is closed or the process is gone.

    Raises:
        OSError: somebody else holds it.
    """
    file = path.open("ab")  # closed by whoever gives the lock back
    try:
        if _HAS_LOCKS:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def _remove_own(folder: Path, lock: IO[bytes], pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends, too, and the folder is not its own
        _remove(folder, lock)


def _remove(folder: Path, lock: IO[bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
    shutil.rmtree(folder, ignore_errors=True)  # on Windows the lock file itself is left until now
