"""What ended a process of a run that is not its first, told in the folder that all of them share.

The first process writes the record. It may not learn why another one left, only that a connection was closed,
and it may be killed before it writes anything.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = "rank{}.error"
_PATTERN = re.compile(r"rank(\d+)\.error")


def tell_error(folder: Path, rank: int, text: str) -> None:
    """Leave the error of a rank."""
    (folder / _NAME.format(rank)).write_text(text, encoding="utf-8")


def told_errors(folder: Path) -> list[str]:
    """The errors that ranks have left, by rank: `rank 1: ...`."""
    return [f"rank {rank}: {path.read_text(encoding='utf-8')}" for rank, path in sorted(_files(folder).items())]


def forget_errors(folder: Path) -> None:
    """Those of the run that goes on in this folder, or that is started again there, are past."""
    for path in _files(folder).values():
        path.unlink(missing_ok=True)


def _files(folder: Path) -> dict[int, Path]:
    found = ((_PATTERN.fullmatch(path.name), path) for path in folder.glob(_NAME.format("*")))
    return {int(match[1]): path for match, path in found if match}
