"""How many work at once: the one setting that prepare and the loaders share."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt

from flatout.config.section import Section


class WorkerSettings(Section):
    """The number of workers, whatever a worker is where it is used."""

    num_workers: NonNegativeInt | Literal["auto"] = "auto"
    """Processes of prepare and of the standard loader, threads of the fast one; 0 works in the caller.
    `auto`: all cores in prepare; up to 8 in the standard loader, 0 on Windows or when all is preloaded."""
