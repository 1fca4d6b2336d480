"""The test bed: what a tuning knows, what one batch costs, and stretches of any setting, timed."""

from __future__ import annotations

import platform
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flatout
from flatout.config import Config
from flatout.doctor.tune.data import TuneData
from flatout.doctor.tune.facts import Facts
from flatout.doctor.tune.model import Service
from flatout.doctor.tune.race import Slice
from flatout.doctor.tune.setting import Setting
from flatout.doctor.tune.step import Step, TrainStep, nothing, time_step
from flatout.doctor.tune.time import Timed, endless, time_loader
from flatout.loader.build import Loader, is_shuffled, settings_for
from flatout.loader.create import Loaders
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine, describe_machine
from flatout.processor import cpu_name

PROBES = 3
"""Stretches that a cost is told by: a single one that was disturbed would make every trial ten times as long,
and a cache not worth its filling."""


class Bed:
    """Everything that trials of one config share.

    Args:
        scratch: folder for copies of the store.
        command: what prepares the store, for notes.

    Raises:
        ConfigError, LoaderError, StoreError, SourceError: the data cannot be opened.
    """

    def __init__(self, config: Config, scratch: Path, command: str = "flatout prepare") -> None:
        self._config = config
        self._machine = describe_machine()
        self._data = TuneData(config, self._machine, scratch, command)
        self._notes = self._data.notes
        self._step: Step = nothing
        self._aside_s = 0.0
        """CPU seconds of a step outside the training thread."""
        if config.task is not None:
            self._prepare_step()

    def facts(self) -> Facts:
        """What is known before the first trial."""
        data, store, machine = self._data, self._data.store, self._machine
        settings, cache = settings_for(self._config, "train"), self._config.cache_config
        return Facts(
            is_fast=store is not None,
            start=data.start,
            consumer="nothing" if self._step is nothing else "the training step",
            num_samples=data.num_samples,
            num_all=data.num_all,
            epochs=self._config.epochs,
            sample_bytes=data.sample_bytes,
            stored_bytes=sum(meta.size for meta in store.meta.shards) if store is not None else 0,
            num_shards=len(store.meta.shards) if store is not None else 0,
            num_cores=machine.num_cores,
            free_bytes=machine.free_bytes,
            shared_bytes=machine.shared_bytes,
            has_cuda=machine.has_cuda,
            is_shuffled=is_shuffled(settings, "train"),
            is_compressed=store is not None and any(s.compression != "none" for s in store.fields.values()),
            cache_size=cache.cache_size if cache.enable_cache else 0,
            has_tokens=settings.max_tokens is not None,
            encodable=data.encodable(),
            form=data.form(),
            is_persistent=settings.persistent_workers,
            notes=tuple(self._notes),
            machine=describe(machine),
        )

    def probe(self, seconds: float) -> Service:
        """What one batch costs to make, to hand over and to train on, one after the other.

        Of several stretches the fastest counts: what disturbs one makes it slower, never faster.
        """
        alone = self._data.start.changed(num_workers=0, cache="none")
        stretches = [self._time(alone, seconds / PROBES, nothing) for _ in range(PROBES)]
        made = min(stretches, key=lambda each: each.wall_s / each.num_samples)
        self._data.make_sample_s = made.wall_s / made.num_samples
        costs = {"make_s": made.wall_s / made.num_batches, "make_cpu_s": made.thread_s / made.num_batches}
        if isinstance(self._step, TrainStep):
            with closing(endless(self._data.loader(alone, on_sample=False))) as batches:
                batch = next(batches)
            step_s, step_cpu_s, self._aside_s = time_step(self._step, batch, seconds, PROBES)
            costs |= {"step_s": step_s, "step_cpu_s": step_cpu_s}
        is_fast = self._data.store is not None
        if not is_fast:
            handed = self._time(alone.changed(num_workers=1, prefetch_factor=2), seconds, nothing)
            costs["hand_s"] = handed.thread_s / handed.num_batches
        return Service(is_fast, self._machine.num_cores, alone.batch_size, **costs)

    def run(self, setting: Setting, seconds: float, *, on_sample: bool = False) -> Slice:
        """One stretch of one setting, with the step that a training has."""
        timed = self._time(setting, seconds, self._step, on_sample=on_sample)
        background_s = timed.cpu_s - timed.thread_s - self._aside_s * timed.num_batches
        sample_s = timed.wall_s / timed.num_samples + self._data.fill_s(setting)
        return Slice(
            samples_per_s=1.0 / sample_s,
            num_batches=timed.num_batches,
            seconds=timed.wall_s,
            wait_share=timed.wait_s / timed.wall_s,
            cpu_share=max(0.0, background_s) / timed.wall_s / self._machine.num_cores,
            memory_bytes=timed.memory_bytes,
            first_batch_s=timed.first_s,
        )

    def get_ready(self, setting: Setting, *, on_sample: bool = False) -> None:
        """Make what its loader needs and later ones find made."""
        _close(self._data.loader(setting, on_sample=on_sample))

    def _time(self, setting: Setting, seconds: float, step: Step, *, on_sample: bool = False) -> Timed:
        loader = self._data.loader(setting, on_sample=on_sample)
        try:
            return time_loader(loader, seconds, step)
        finally:
            _close(loader)

    def _prepare_step(self) -> None:
        """The task's step, if it can be run outside a training; otherwise loading alone is tuned."""
        from flatout.train.loaders import (
            describe_data,  # Lightning comes with it, for which others need not wait
        )
        from flatout.train.task import load_task

        data = describe_data(Loaders(self._data.first, None, None))
        try:
            if self._data.store is None and not self._config.use_gpu_augment:
                self._data.transform = load_task(self._config).sample_transform(self._config, data)
            step = TrainStep(self._config, data, augments=self._data.transform is None)
            batches = endless(self._data.loader(self._data.start.changed(num_workers=0), on_sample=False))
            step(next(batches))
            batches.close()
        except Exception as error:  # whatever a task's code does without a trainer
            self._notes.append(
                f"the step of task '{self._config.task}' cannot be run outside a training "
                f"({type(error).__name__}: {error}): loading alone is tuned"
            )
        else:
            self._step = step


def _close(loader: Loader) -> None:
    if isinstance(loader, FastDataLoader):
        loader.close()


def describe(machine: Machine) -> dict[str, Any]:
    """The machine that was measured."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_name(),
        "num_cores": machine.num_cores,
        "memory_bytes": machine.memory_bytes,
        "free_bytes": machine.free_bytes,
        "gpu": None if machine.gpu is None else machine.gpu.name,
        "python": platform.python_version(),
        "torch": version("torch"),
        "flatout": flatout.__version__,
    }
