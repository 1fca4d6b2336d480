"""Every error flatout raises. A message says what, where, got / wanted, and the next step."""

from __future__ import annotations


class FlatoutError(Exception):
    """Anything flatout raises on purpose; the command line prints it without a traceback."""


class ConfigError(FlatoutError, ValueError):
    """A setting is unknown, misspelt or impossible."""


class MissingDependencyError(FlatoutError, ImportError):
    """A file needs a library that is not installed; the message names the extra."""


class SourceError(FlatoutError):
    """The raw data as a whole cannot be used (manifest, folder, columns)."""


class ManifestError(SourceError, ValueError):
    """The manifest cannot be read, or its rows contradict each other."""


class ManifestMissingError(ManifestError):
    """There is no manifest at this path."""


class SampleError(SourceError):
    """One sample cannot be used; `stage` says where it failed. It goes to quarantine, the run goes on."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"{stage}: {reason}")
        self.stage = stage
        self.reason = reason

    def __reduce__(self) -> tuple[type[SampleError], tuple[str, str]]:
        return type(self), (self.stage, self.reason)


class StoreError(FlatoutError):
    """A store cannot be read or written."""


class StoreMissingError(StoreError, FileNotFoundError):
    """There is no store at this path."""


class StoreVersionError(StoreError):
    """The store has a format that this release does not read."""


class StoreCorruptError(StoreError):
    """A store's files contradict their recorded sizes or checksums.

    `reason` is what is wrong with the file, for a report that names it and what to do itself.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = message if reason is None else reason


class StoreLockedError(StoreError):
    """Another prepare owns this store."""


class StoreSpaceError(StoreError, OSError):
    """The disk has too little room."""


class PrepareError(StoreError):
    """A prepare could not finish; what was finished stays and the next run continues."""


class TooManyBadError(PrepareError):
    """More samples failed than `max_bad_fraction` allows."""


class LoaderError(FlatoutError):
    """Batches cannot be made or handed over."""


class LoaderStateError(LoaderError, ValueError):
    """A saved state does not fit this loader."""


class CacheError(LoaderError):
    """A dataset cannot be cached, or a cache does not belong to it."""


class AugmentError(FlatoutError, ValueError):
    """A transform cannot be set up this way, or cannot be applied to this tensor."""


class TrainError(FlatoutError, RuntimeError):
    """A training cannot start, or had to stop."""


class TrainMemoryError(TrainError, MemoryError):
    """Memory ran out; the message names the settings that help."""


class NonfiniteLossError(TrainError, ArithmeticError):
    """The loss became NaN or infinite; the message names the samples."""


class RecordError(FlatoutError, ValueError):
    """The record of a run or of the doctor is missing, cut off, or something else."""


class RecordMissingError(RecordError):
    """There is no run, and no record, at this path."""


class ReportError(FlatoutError, OSError):
    """A report cannot be written, or a dashboard not served."""
