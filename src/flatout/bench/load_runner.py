"""One contestant in a process of its own: it is set up once, then runs a round whenever it is told to.

`python -m flatout.bench.load_runner` reads one JSON request a line and answers with one line. Between
its turns it sleeps as soon as its queues are full, so that each contestant has the machine for itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from flatout.bench.load_cases import LOAD_CASES, LoadCase
from flatout.errors import FlatoutError
from flatout.loader.fetch import SCALE
from flatout.store.checks import crc32c
from flatout.store.encode import QUANTISED

HELD_BATCHES = 3
"""The consumer keeps the batch that it works on and two before it, as a training does."""
RUN_UP_S = 0.3
"""Run before the clock starts: what waited in queues since the last round would count as made in no time."""

Counted = tuple[int, int, float]
"""Samples, bytes and seconds."""
Batches = Iterator[dict[str, Any]]
"""Endless batches: tensors `x` and `y`, for ragged samples `x_length`, too."""


class Contestant:
    """Runs rounds of one loader."""

    def __init__(self, batches: Callable[[], Batches], case: LoadCase, encoding: str = "none") -> None:
        self._case = case
        self._encoding = encoding
        self._make = batches
        self._stream: Batches | None = None
        self._held: deque[dict[str, Any]] = deque(maxlen=HELD_BATCHES)

    def run(self, seconds: float) -> list[Counted]:
        """What was delivered in so many seconds."""
        stream = self._stream = self._stream or self._make()
        self._pass(stream, min(RUN_UP_S, seconds))
        return [self._pass(stream, seconds)]

    def check(self) -> dict[str, int]:
        """One epoch compared: every sample once, each with its own numbers, as exact as its encoding is.

        Raises:
            FlatoutError: a sample is missing, comes twice, or has other numbers.
        """
        wanted, seen = self._case.crcs(), np.zeros(self._case.num_samples, int)
        stream = self._make()
        while seen.sum() < self._case.num_samples:
            batch = next(stream)
            for at, number in enumerate(batch["y"].tolist()):
                seen[number] += 1
                row = self._row(batch, at, number)
                is_own = (
                    crc32c(row) == wanted[number] if self._encoding == "none" else self._is_near(row, number)
                )
                if not is_own:
                    raise FlatoutError(f"sample {number} is not what was stored")
        if (seen != 1).any():
            raise FlatoutError(
                f"sample {int(np.argmax(seen != 1))} came {int(seen[np.argmax(seen != 1)])} times"
            )
        return {"compared": int(seen.sum())}

    def _is_near(self, row: Any, number: int) -> bool:
        """Whether no value is further off than half a step of the encoding, and what the dtypes round."""
        sample = self._case.sample(number).astype(np.float32)
        low, high = QUANTISED[self._encoding]
        step = float(np.ptp(sample)) / (high - low)
        allowed = step / 2 + float(np.spacing(np.abs(sample).max().astype(row.dtype))) / 2 + 1e-6
        return row.shape == sample.shape and float(np.abs(row.astype(np.float32) - sample).max()) <= allowed

    def _row(self, batch: dict[str, Any], at: int, number: int) -> Any:
        row = batch["x"][at].numpy()
        if (scale := batch.get(f"x{SCALE}")) is not None:  # handed over as it is stored
            row = row.astype(np.float32) * scale[at, 0].item() + scale[at, 1].item()
        if not self._case.is_ragged:
            return row
        length = int(self._case.lengths[number])
        if int(batch["x_length"][at]) != length or row[length:].any():
            raise FlatoutError(f"sample {number} has length {int(batch['x_length'][at])}, wanted {length}")
        return np.ascontiguousarray(row[:length])

    def _pass(self, stream: Batches, seconds: float) -> Counted:
        count = num_bytes = 0
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or not count:
            batch = next(stream)
            self._held.append(batch)
            count += len(batch["y"])
            num_bytes += batch["x"].nbytes
        return count, num_bytes, elapsed


def contestant_of(request: dict[str, Any]) -> Any:
    """What a request names: `module:name`, a function of case, store and scratch folder."""
    case = LOAD_CASES[request["case"]].scaled(request["share"])
    module, _, name = request["who"].partition(":")
    make = getattr(import_module(f"flatout.bench.{module}"), name)
    made = make(case, Path(request["store"]), Path(request["scratch"]))
    return Contestant(made, case, request.get("encoding", "none")) if callable(made) else made


def main() -> None:
    """Serve until the other side closes; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    contestant: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "set up":
            contestant, answer = contestant_of(request), {}
        elif request["do"] == "check":
            answer = contestant.check()
        else:
            answer = {"tries": contestant.run(request["seconds"])}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
