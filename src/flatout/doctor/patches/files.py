"""Files that the script opens: how many a batch, where they lie, and what it writes over or writes too late."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_NAMED = 20
MAX_MADE = 10_000
FLAGS = os.O_WRONLY | os.O_RDWR
PSEUDO = ("/proc/", "/dev/", "/sys/")
STANDARD_ERROR = 2
COMPILED = ".pyc"
"""In the name of what the interpreter itself writes, first under a longer name."""


class Files:
    """Counts of this process; an audit hook cannot be removed, so it costs as little as it can."""

    def __init__(self) -> None:
        self.num_opened = 0
        self.last_read = ""
        self.overwritten: list[str] = []
        self.is_late = False
        """Batches are replayed or remedies tried: weights and losses are no longer those of a training."""
        self.late: list[str] = []
        """What was written since."""
        self.still_open: dict[str, int] = {}
        """What was open for writing by then, with its size: a log that goes on."""
        self.is_on = False
        self._own = ""
        self._made: set[str] = set()
        """Files that were not there before the script: to write them again loses nothing of anybody's."""

    def begin(self, folder: Path) -> None:
        """Hook into every `open` of this process and of those forked from it."""
        self._own = str(folder)
        if not self.is_on:
            sys.addaudithook(self._audit)
        self.is_on = True

    def begin_late(self) -> None:
        """Whatever is written from here on is no result."""
        self.is_late = True
        self.still_open = {path: size for path, size in open_to_write() if not path.startswith(self._own)}

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if not isinstance(path, str) or path.startswith(self._own):
                return
            if isinstance(flags, int) and flags & FLAGS:
                self._note_write(path, mode, flags)
            else:
                self.num_opened += 1
                self.last_read = path
        elif event == "os.rename":
            self._note_rename(*map(os.fsdecode, args[:2]))

    def _note_write(self, path: str, mode: str | None, flags: int) -> None:
        is_new = flags & os.O_TRUNC or (mode is not None and "w" in mode)
        if is_new and path not in self.overwritten and len(self.overwritten) < MAX_NAMED:
            self.note_overwritten(path)
        if self.is_late:
            self._note_late(path)

    def _note_rename(self, before: str, after: str) -> None:
        """A checkpoint is written under another name first, so that it is whole or not there."""
        if after.startswith(self._own):
            return
        self.note_overwritten(after)
        if self.is_late:
            if before in self.late:
                self.late.remove(before)
            self._note_late(after)

    def note_saved(self, path: str) -> None:
        """Somebody is about to write `path` in a way that no audit hook sees."""
        self.note_overwritten(path)
        if self.is_late:
            self._note_late(path)

    def note_overwritten(self, path: str) -> None:
        """Somebody is about to write `path` anew."""
        if path.startswith(PSEUDO) or path in self.overwritten or path in self.late or path in self._made:
            return
        try:
            known = Path(path).stat()
        except OSError:
            if len(self._made) < MAX_MADE:
                self._made.add(path)
            return
        if stat.S_ISREG(known.st_mode) and known.st_size > 0 and len(self.overwritten) < MAX_NAMED:
            self.overwritten.append(path)

    def _note_late(self, path: str) -> None:
        if path in self.late or path.startswith(PSEUDO) or COMPILED in path:
            return
        if len(self.late) < MAX_NAMED:
            self.late.append(path)


def open_to_write() -> Iterator[tuple[str, int]]:
    """Files that this process has open for writing, and their sizes, beside what it prints; Linux only."""
    folder = Path("/proc/self/fd")
    handles = [int(each.name) for each in folder.iterdir()] if folder.is_dir() else []
    for handle in sorted(handles):
        with suppress(OSError):  # the one that listed them is closed
            known, path = os.fstat(handle), str((folder / str(handle)).readlink())
            is_file = stat.S_ISREG(known.st_mode) and known.st_nlink and not path.startswith(PSEUDO)
            if handle > STANDARD_ERROR and is_file and _flags_of(handle) & FLAGS:
                yield path, known.st_size


def _flags_of(handle: int) -> int:
    import fcntl  # not on Windows, where nothing is listed

    return fcntl.fcntl(handle, fcntl.F_GETFL)


FILES = Files()
