"""Making: what a row's code, which may be anybody's, gives, or throws: then that is the row's failure alone."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from flatout.errors import ConfigError, MissingDependencyError, SampleError
from flatout.source import SampleMaker
from flatout.types import Array, Row

Made = list[tuple[int, Mapping[str, Array]]]
"""(part, sample) of each of a row's samples, part -1 for a whole row."""
PASSED = (SampleError, ConfigError, MissingDependencyError)
"""What a row's code may raise as it is; whatever else it throws is that one row's failure."""


def make_samples(maker: SampleMaker, row: Row) -> Made:
    """The row's samples.

    Whatever a transform or a decoder throws is that row's failure alone.

    Raises:
        SampleError: the row is bad. ConfigError, MissingDependencyError: every row would fail.
    """
    try:
        made = maker.make(row)
        if type(made) is dict or isinstance(made, Mapping):  # to ask for a Mapping takes 2 us
            return [(-1, made)]
        samples = list(enumerate(made))
    except PASSED:
        raise
    except BaseException as error:
        raise row_failure("transform", error) from error
    if not samples:
        raise SampleError("transform", "the row gave no sample")
    return samples


def _can_be_interrupted() -> bool:
    """Whether Ctrl-C reaches this process: in a worker, which leaves it to its parent, it is the row's code."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def row_failure(stage: str, error: BaseException) -> SampleError:
    """Anything that a row's code threw, sys.exit and a Rust panic among it, as that row's failure.

    Raises:
        KeyboardInterrupt: it was that, and the user's.
    """
    if isinstance(error, KeyboardInterrupt) and _can_be_interrupted():
        raise error
    if isinstance(error, MemoryError):
        advice = "lower num_workers, preprocess_batch_size or max_sample_bytes"
        return SampleError("decode", f"out of memory; {advice}")
    return SampleError(stage, describe_error(error))


def describe_error(error: BaseException) -> str:
    """Type and message of any error, even one that cannot say what it is."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
