"""Checkpoints and weights at an http address: fetched anew each time, as a file that is gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from flatout.errors import TrainError

TIMEOUT_S = 60.0
"""Silence of a server after which it counts as gone."""


def is_address(source: str | Path) -> bool:
    """Whether a source is on the web."""
    return str(source).startswith(("http://", "https://"))


@contextmanager
def local_file(source: str | Path) -> Iterator[Path]:
    """A path in, itself out; an http address in, a temporary file with its content out.

    Not by torch.hub: it keeps what it has once fetched under the file's name alone, and would give the weights
    of one server's `last.ckpt` for every other.

    Raises:
        TrainError: the address cannot be reached, or breaks off.
    """
    if not is_address(source):
        yield Path(source)
        return
    with tempfile.TemporaryDirectory(prefix="flatout-fetched-") as folder:
        path = Path(folder) / (Path(unquote(urlsplit(str(source)).path)).name or "weights")
        _fetch(str(source), path)
        yield path


def _fetch(address: str, path: Path) -> None:
    try:
        with urlopen(Request(address, headers={"User-Agent": "flatout"}), timeout=TIMEOUT_S) as answer:
            wanted = answer.headers.get("Content-Length")
            with open(path, "wb") as file:
                shutil.copyfileobj(answer, file, 1 << 20)
    except (OSError, HTTPException, ValueError) as error:  # URLError and time-outs are OSErrors
        raise TrainError(f"{address} cannot be fetched: {error}") from error
    got = path.stat().st_size
    if wanted is not None and got != int(wanted):
        raise TrainError(f"{address} broke off after {got:,} of {int(wanted):,} bytes: try again")
