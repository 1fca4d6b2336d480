"""One thread: resident batches that a single one computes, against as many as the script has."""

from __future__ import annotations

from typing import Any

import torch

from flatout.doctor.ceiling.sources import ResidentSource


class OneThreadSource(ResidentSource):
    """Resident batches, while one thread computes."""

    name = "one_thread"

    def __init__(self, kept: list[Any]) -> None:
        super().__init__(kept)
        self._num_before = 1

    def begin(self) -> None:
        """Leave the others idle."""
        self._num_before = torch.get_num_threads()
        torch.set_num_threads(1)

    def end(self) -> None:
        """As many as before."""
        torch.set_num_threads(self._num_before)
