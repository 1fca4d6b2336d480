"""The ordinary way: each sample is decoded and processed again whenever it is asked for."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.config import Config
from flatout.source import FieldsMaker, read_manifest
from flatout.types import Array


class RawRecordings:
    """A map-style data set as most are written, with the work in `__getitem__`.

    It calls the functions that a prepare calls: both give the same samples, and neither is slowed down.
    """

    def __init__(self, config: Config) -> None:
        manifest = read_manifest(config)
        self._rows = {row.key: row for row in manifest.rows(range(len(manifest)))}
        self._maker = FieldsMaker(config.fields, str(manifest.base_path))

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> list[str]:
        return list(self._rows)

    def __getitem__(self, key: str) -> Mapping[str, Array]:
        """One sample.

        Raises:
            SampleError: the file cannot be used; in a training this is where the run ends.
        """
        made = self._maker.make(self._rows[key])
        if not isinstance(made, Mapping):
            raise AssertionError("one file, one sample: the config splits nothing")
        return made
