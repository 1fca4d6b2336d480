"""Rows of numbers from the observed processes: kept in memory, appended to a file now and then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]


class RowLog:
    """Rows of one process. One `add` costs 0.1 us; a flush about 1 us a row."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.rows: list[Row] = []
        self.is_lost = False
        """Rows could not be written: the disk is full, or the observation is over and its folder gone."""
        self._num_written = 0
        self.add = self.rows.append

    def flush(self) -> None:
        """Append what is new. A process that is killed loses only what came after its last flush.

        Where that is not possible the rows are lost, and the script, whose fault it is not, goes on.
        """
        if not self.rows:
            return
        number = len(self.rows)
        text = json.dumps([self._num_written, self.rows[:number]], default=str) + "\n"
        try:
            self._append(text.encode())
        except OSError:
            self.is_lost = True
        # Ctrl-C may come between any two lines: rows that were written are known by their number when read.
        self._num_written += number
        del self.rows[:number]

    def _append(self, text: bytes) -> None:
        descriptor = os.open(self._path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, text)
        finally:
            os.close(descriptor)

    def _path(self) -> Path:
        return self.folder / f"{self.kind}-{os.getpid()}.jsonl"


def read_rows(folder: Path, kind: str) -> dict[int, list[list[Any]]]:
    """All rows of a kind by process; a last line that was cut off by a kill is left out."""
    return {
        int(path.stem.rpartition("-")[2]): list(_rows(path)) for path in sorted(folder.glob(f"{kind}-*.jsonl"))
    }


def _rows(path: Path) -> Iterator[list[Any]]:
    num_read = 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            first, rows = json.loads(line)
        except json.JSONDecodeError:
            return
        yield from rows[max(0, num_read - first) :]
        num_read = max(num_read, first + len(rows))
