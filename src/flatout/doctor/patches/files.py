"""Files that the script opens: how many a batch, where they lie, and which existing ones it writes over."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

MAX_NAMED = 20
FLAGS = os.O_WRONLY | os.O_RDWR
PSEUDO = ("/proc/", "/dev/", "/sys/")


class Files:
    """Counts of this process; an audit hook cannot be removed, so it costs as little as it can."""

    def __init__(self) -> None:
        self.num_opened = 0
        self.last_read = ""
        self.overwritten: list[str] = []
        self.is_on = False
        self._own = ""

    def begin(self, folder: Path) -> None:
        """Hook into every `open` of this process and of those forked from it."""
        self._own = str(folder)
        if not self.is_on:
            sys.addaudithook(self._audit)
        self.is_on = True

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "open":
            return
        path, mode, flags = args
        if not isinstance(path, str) or path.startswith(self._own):
            return
        if isinstance(flags, int) and flags & FLAGS:
            self._note_write(path, mode, flags)
        else:
            self.num_opened += 1
            self.last_read = path

    def _note_write(self, path: str, mode: str | None, flags: int) -> None:
        is_new = flags & os.O_TRUNC or (mode is not None and "w" in mode)
        if is_new and path not in self.overwritten and len(self.overwritten) < MAX_NAMED:
            self.note_overwritten(path)

    def note_overwritten(self, path: str) -> None:
        """Somebody is about to write `path` anew."""
        if path.startswith(PSEUDO) or path in self.overwritten:
            return
        try:
            has_content = Path(path).stat().st_size > 0
        except OSError:
            return
        if has_content and len(self.overwritten) < MAX_NAMED:
            self.overwritten.append(path)


FILES = Files()
