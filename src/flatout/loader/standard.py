"""StandardDataset: the ordinary way: each sample is decoded from its raw file whenever it is asked for.

It calls what a prepare calls, so that both paths give the same samples, and neither is slowed down.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch.utils.data import Dataset

from flatout.config import Config
from flatout.errors import ConfigError, LoaderError, SampleError
from flatout.loader.fetch import KEY, VALID
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.memory import check_preload
from flatout.loader.raw import WHOLE, RawSource
from flatout.loader.sampler import Marked
from flatout.loader.samples import Sample, restored
from flatout.source import hash_key
from flatout.source.maker import FieldsMaker
from flatout.source.value import make_value
from flatout.store.encode import encode
from flatout.store.making import make_samples
from flatout.store.specify import check_array
from flatout.types import Array, FieldSpec, Row


class StandardDataset(Dataset[Any]):
    """Samples of one split of a config's raw files, equal to those of its store, decoded when asked for.

    Args:
        source: a config (a Config, a dict, or the path of a file), or a RawSource that several splits share.
        split: train, val, test, ...; None takes every row.
        transform: sample in, sample out; runs on each sample when it is read.
        cache_in_memory: decode the whole split now and keep it. Spawned workers decode for themselves.
        is_collated: samples are stacked into batches and nobody else sees them, so that kept ones need not be
            copied: 6 us for (4000,) float32, of 2 for its part of the batch.
        machine: what `cache_in_memory` must fit into; this one by default.

    Raises:
        ConfigError, ManifestError: the settings or the manifest cannot be used, or the split has no rows.
        LoaderError: `cache_in_memory` does not fit, or a row is bad.
    """

    def __init__(
        self,
        source: RawSource | Config | Mapping[str, Any] | str | Path,
        split: str | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        cache_in_memory: bool = False,
        is_collated: bool = False,
        machine: Machine | None = None,
    ) -> None:
        raw = source if isinstance(source, RawSource) else RawSource(source)
        numbering = raw.numbering(split)
        if not len(numbering):
            raise ConfigError(f"split '{split}' has no rows; there are: {', '.join(raw.splits)}")
        self.split = split
        self.fields = raw.fields
        self.sample_bytes = raw.sample_bytes
        self.transform = transform
        self._is_collated = is_collated
        used, self._rows = np.unique(numbering.rows, return_inverse=True)
        self._parts = numbering.parts
        self._manifest = raw.job.manifest.take(used)
        self._maker = raw.job.maker
        self._sys_path = list(raw.job.sys_path)
        self._nonfinite = {name for name, section in raw.job.sections.items() if section.allow_nonfinite}
        self._last: tuple[int, list[tuple[int, Mapping[str, Array]]]] | None = None
        self._kept: list[Sample] | None = None
        if cache_in_memory:
            self._fill(machine or describe_machine(look_for_gpu=False))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One sample; negative indices count from the end. Where a sampler marks repeats, it has `valid`.

        Raises:
            IndexError: there is no such sample.
            LoaderError: its file cannot be used; the message names key and path.
        """
        wanted = operator.index(index)
        at = wanted + len(self) if wanted < 0 else wanted
        if not 0 <= at < len(self):
            raise IndexError(f"sample {wanted} of a dataset with {len(self):,} samples")
        sample = self._make(at) if self._kept is None else self._copy(self._kept[at])
        sample = sample if self.transform is None else self.transform(sample)
        if isinstance(index, Marked) and isinstance(sample, dict):
            sample[VALID] = torch.tensor(not index.is_repeat)
        return sample

    def keys(self) -> list[str]:
        """Every sample's key, in order."""
        names = self._manifest.keys.to_pylist()
        places = zip(self._rows.tolist(), self._parts.tolist(), strict=True)
        return [_key(names[row], part) for row, part in places]

    def values(self, name: str) -> list[Array]:
        """A label, number or text of every sample, in order, read off the manifest without decoding files.

        What a transform makes stands in no column: then each sample is made once.

        Raises:
            LoaderError: a cell cannot be used; the message names the row.
        """
        if not isinstance(self._maker, FieldsMaker):
            return [self._make(at)[name].numpy() for at in range(len(self))]
        section: Any = self._maker.fields[name]
        convert, found, spec = make_value(name, section), [], self.fields[name]
        for number, cell in enumerate(self._manifest.table[section.column or name].to_pylist()):
            try:
                value = convert(cell)
                is_whole = spec.encoding == "none"
                found.append(value if is_whole else self._tensor(spec, {name: value}, False).numpy())
            except SampleError as error:
                raise self._bad(self._manifest.rows([number])[0], error) from error
        return [found[number] for number in self._rows.tolist()]

    def __getstate__(self) -> dict[str, Any]:
        # A fresh maker: what it has planned so far cannot be pickled.
        return {**self.__dict__, "_maker": replace(self._maker), "_last": None, "_kept": None}  # type: ignore[type-var]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        sys.path[:0] = [folder for folder in self._sys_path if folder not in sys.path]

    def _make(self, at: int) -> Sample:
        number, part = int(self._rows[at]), int(self._parts[at])
        row = self._manifest.rows([number])[0]
        try:
            arrays = self._pick(self._samples(number, row), part)
            is_shared = part != WHOLE  # remembered, or repeated beside each part
            sample = {name: self._tensor(spec, arrays, is_shared) for name, spec in self.fields.items()}
        except SampleError as error:
            raise self._bad(row, error) from error
        sample[KEY] = torch.tensor(np.uint64(hash_key(_key(row.key, part))).view(np.int64))
        return sample

    def _samples(self, number: int, row: Row) -> list[tuple[int, Mapping[str, Array]]]:
        """What a row gives. A row of several samples is remembered: splits are often read in order."""
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        made = make_samples(self._maker, row)
        if len(made) > 1:
            self._last = number, made
        return made

    def _pick(self, samples: list[tuple[int, Mapping[str, Array]]], part: int) -> Mapping[str, Array]:
        found = dict(samples)
        if part in found:
            return found[part]
        wanted = "one sample" if part == WHOLE else f"at least {part + 1} samples"
        raise SampleError(
            "transform",
            f"the row gives {len(samples)} samples, {wanted} expected: prepare a store once, which counts them",
        )

    def _tensor(self, spec: FieldSpec, arrays: Mapping[str, Array], is_shared: bool) -> torch.Tensor:
        """The field as the store would give it back: checked, cast, and rounded where it is encoded."""
        if spec.name not in arrays:
            raise SampleError("check", f"field '{spec.name}' is missing; got {sorted(arrays)}")
        array = check_array(spec, arrays[spec.name], spec.name in self._nonfinite)
        stored, scale = encode(spec, array)
        if is_shared or not (stored.flags.writeable and stored.flags.c_contiguous):
            stored = np.array(stored, order="C")
        scales = None if scale is None else np.array([scale], np.float32)
        return restored(spec, torch.from_numpy(stored)[None], scales)[0]

    def _bad(self, row: Row, error: SampleError) -> LoaderError:
        return LoaderError(
            f"sample '{row.key}' ({self._maker.path_of(row)}) cannot be read: {error.stage}: {error.reason}. "
            "Mend or remove it, or run 'flatout prepare' once: it finds all such rows and leaves them out"
        )

    def _copy(self, sample: Sample) -> Sample:
        """Whoever gets a sample may change it in place; what is kept must not change."""
        if self._is_collated and self.transform is None:
            return dict(sample)
        return {name: value.clone() for name, value in sample.items()}

    def _fill(self, machine: Machine) -> None:
        what = f"cache_in_memory of split '{self.split}'" if self.split else "cache_in_memory"
        check_preload(self.sample_bytes * len(self), machine, what)
        self._kept = [self._make(at) for at in range(len(self))]


def _key(name: str, part: int) -> str:
    return name if part == WHOLE else f"{name}#{part:04d}"
