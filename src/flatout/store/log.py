"""`preprocessing.log`: what every prepare of a store did, appended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOG = "preprocessing.log"


class _FileHandler(logging.FileHandler):
    """A log that cannot be written (the disk is full) stops nothing: what matters is told elsewhere, too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        return

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def log_to(folder: Path) -> Iterator[None]:
    """Send `flatout.prepare` messages to the store's log while the block runs."""
    logger = logging.getLogger("flatout.prepare")
    handler = _FileHandler(folder / LOG, encoding="utf-8", errors="backslashreplace", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    except BaseException as error:
        logger.error("stopped: %s: %s", type(error).__name__, error)
        raise
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
