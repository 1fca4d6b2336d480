"""Switches of the whole process that a trial sets for its blocks, and puts back after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from flatout.doctor.ceiling.sources import LoaderSource, Source
from flatout.doctor.child.watch import WATCH
from flatout.errors import FlatoutError

if TYPE_CHECKING:
    from flatout.doctor.child.session import Session

Switch = tuple[Callable[[], Any], Callable[[Any], None]]


def _set_benchmark(value: bool) -> None:
    torch.backends.cudnn.benchmark = value


SWITCHES: dict[str, Switch] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "cudnn_benchmark": (lambda: torch.backends.cudnn.benchmark, _set_benchmark),
}
"""Settings of a remedy that are neither the loader's nor the dataset's: how to read, how to set."""


def reason_of(error: Exception) -> str:
    """Why a trial was not possible, in one line: what a worker raised has its whole traceback."""
    if isinstance(error, FlatoutError):
        return str(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[-1:]])


class SwitchedSource:
    """Another source's batches, with switches set while its blocks last."""

    def __init__(self, name: str, inner: Source, settings: Mapping[str, Any], session: Session) -> None:
        self.name = name
        self._inner = inner
        self._session = session
        self._wanted = {name: value for name, value in settings.items() if name in SWITCHES}
        self._evaluate_batches = settings.get("evaluate_batches")
        self._before: dict[str, Any] = {}

    def next(self) -> Any:
        """The next batch; from the moment on that the trial fails the script's own: it is not its fault."""
        base = self._session.base
        try:
            return self._inner.next()
        except Exception as error:
            if base is None or self._inner is base:
                raise
            WATCH.add(("refused", self.name, reason_of(error)))
            self._inner = base
            return base.next()

    @property
    def num_ahead(self) -> int:
        """Prefetched batches."""
        return self._inner.num_ahead

    def settle(self) -> None:
        """Wait until nothing works in the background."""
        self._inner.settle()

    def close(self) -> None:
        """End the workers of its own, if it has any."""
        if isinstance(self._inner, LoaderSource) and self._inner is not self._session.base:
            self._inner.close()

    def begin(self) -> None:
        """Set the switches."""
        self._before = {name: SWITCHES[name][0]() for name in self._wanted}
        for name, value in self._wanted.items():
            SWITCHES[name][1](value)
        self._session.evaluate_batches = self._evaluate_batches

    def end(self) -> None:
        """Put them back."""
        for name, value in self._before.items():
            SWITCHES[name][1](value)
        self._session.evaluate_batches = None
