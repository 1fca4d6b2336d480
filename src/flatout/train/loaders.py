"""Which loaders a run reads: those of an up-to-date store, or of the raw files with the reason and the cure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from flatout.config import Config
from flatout.errors import ConfigError, LoaderError
from flatout.loader import FastDataLoader, StandardDataset
from flatout.loader.build import Builder
from flatout.loader.create import Loaders, Source, choose_builder, prepare_command
from flatout.loader.machine import Machine, describe_machine
from flatout.loader.names import sample_names
from flatout.loader.sampler import DrawnSamples
from flatout.train.ordinary import ResumableLoader
from flatout.train.sample_draws import SampleDraws
from flatout.train.task import SampleTransform, TaskData
from flatout.train.values import stored_values
from flatout.train.waits import RunLoader


@dataclass
class RunLoaders:
    """The loaders of a run, and what was decided on the way to them."""

    splits: dict[str, RunLoader]
    data: TaskData
    is_fast: bool
    notes: list[str] = field(default_factory=list)

    def datasets(self) -> dict[str, StandardDataset]:
        """The data set of each split on the standard path; nothing on the fast one."""
        loaders = {name: loader.loader for name, loader in self.splits.items()}
        return {
            n: dataset_of(found.loader) for n, found in loaders.items() if isinstance(found, ResumableLoader)
        }

    def set_transform(self, transform: SampleTransform, seed: int) -> None:
        """Augment the train samples of the standard path one by one; what is drawn follows from `seed`."""
        found = self.splits["train"].loader
        assert isinstance(found, ResumableLoader)
        found.draws = dataset_of(found.loader).transform = SampleDraws(transform, seed)

    def close(self) -> None:
        """End threads and workers."""
        for loader in self.splits.values():
            loader.close()


def open_loaders(config: Config, source: Source, machine: Machine | None = None) -> RunLoaders:
    """The loaders of train, val and test.

    With `use_fast_loader: auto` a store that is missing, or made with other settings, is no error: the raw
    files are read instead, and a note says so and how to prepare.

    Args:
        source: what the config came from, for the command that a note names.

    Raises:
        StoreMissingError, LoaderError, ConfigError, ManifestError: as `create_dataloaders`.
    """
    machine = machine or describe_machine()
    command = partial(prepare_command, source, config)
    notes: list[str] = []
    try:
        builder = choose_builder(config, machine, command)
    except LoaderError as error:
        if config.use_fast_loader != "auto":
            raise
        notes.append(f"{error}. Until then the raw files are decoded in every epoch")
        builder = choose_builder(config.model_copy(update={"use_fast_loader": False}), machine, command)
    loaders = _build_all(builder)
    splits = {
        name: _run_loader(loader, config, name)
        for name, loader in zip(Loaders._fields, loaders, strict=True)
        if loader
    }
    notes += dict.fromkeys(builder.notes)
    return RunLoaders(splits, describe_data(loaders), _is_fast(loaders), notes)


def _build_all(builder: Builder) -> Loaders:
    """The loader of each usual split; nothing is logged, because a run says its loaders' notes itself."""
    loaders = Loaders(*(builder.build(split) for split in Loaders._fields))
    if all(loader is None for loader in loaders):
        there = ", ".join(builder.splits) or "no splits"
        raise ConfigError(f"no samples in train, val or test; there are: {there}")
    return loaders


def dataset_of(loader: DataLoader[Any]) -> StandardDataset:
    """The data set under an ordinary loader of ours."""
    dataset = loader.dataset
    found = dataset.dataset if isinstance(dataset, DrawnSamples) else dataset
    assert isinstance(found, StandardDataset)
    return found


def _run_loader(loader: FastDataLoader | DataLoader[Any], config: Config, split: str) -> RunLoader:
    if isinstance(loader, FastDataLoader):
        return RunLoader(loader)
    return RunLoader(ResumableLoader(loader, partial(_batches_of, loader, config, split)))


def _batches_of(loader: DataLoader[Any], config: Config, split: str) -> dict[str, Any]:
    """What the batches of an ordinary loader follow from, beside seed and devices."""
    settings = config.loader_for(split)
    keys = "\n".join(dataset_of(loader).keys()).encode("utf-8", "surrogatepass")
    return {
        "order": f"{config.order} {config.order_field}" if config.order_field else config.order,
        "batch_size": settings.batch_size if settings.max_tokens is None else None,
        "max_tokens": settings.max_tokens,
        "length_buckets": settings.length_buckets,
        "samples": f"{zlib.crc32(keys):08x}",
    }


def _is_fast(loaders: Loaders) -> bool:
    return any(isinstance(loader, FastDataLoader) for loader in loaders)


def describe_data(loaders: Loaders) -> TaskData:
    """What a task may know of these loaders' data."""
    there = {name: loader for name, loader in zip(Loaders._fields, loaders, strict=True) if loader is not None}
    first = next(iter(there.values()))
    if isinstance(first, FastDataLoader):
        counts = {name: len(first.store.positions(name)) for name in there}
        names = partial(sample_names, first.store)
        return TaskData(first.store.fields, counts, first.store, stored_values(first.store), names)
    datasets = {name: dataset_of(loader) for name, loader in there.items() if isinstance(loader, DataLoader)}
    counts = {name: len(dataset) for name, dataset in datasets.items()}
    return TaskData(
        dataset_of(first).fields,
        counts,
        values=lambda name, split: datasets[split].values(name),
        names=partial(sample_names, list(datasets.values())),
    )
