"""The data of a tuning: a config's store or raw files opened once, its train split loaded with any setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from flatout.config import Config
from flatout.doctor.tune import variant
from flatout.doctor.tune.sample import SampleStores, encodable_fields, forget_pages
from flatout.doctor.tune.setting import ENCODINGS, Setting
from flatout.doctor.tune.variant import Samples, for_copy, variant_of
from flatout.errors import ConfigError, LoaderError
from flatout.loader.batching import loader_arguments
from flatout.loader.build import (
    FastBuilder,
    Loader,
    StandardBuilder,
    is_shuffled,
    preload_setting,
    settings_for,
)
from flatout.loader.create import choose_builder, refuse_stale
from flatout.loader.loader import FastDataLoader
from flatout.loader.machine import Machine
from flatout.loader.memory import CACHE_SHARE
from flatout.loader.order import Sequential, Shuffled
from flatout.loader.platform import decide
from flatout.loader.raw import RawSource
from flatout.loader.samples import mean_bytes
from flatout.loader.standard import StandardDataset
from flatout.store import StoreReader, is_store


class TuneData:
    """What trials load from.

    Args:
        scratch: folder for copies of the store.
        command: what prepares the store, for notes.

    Raises:
        ConfigError, LoaderError, StoreError, SourceError: it cannot be opened, or there is no train split.
    """

    def __init__(self, config: Config, machine: Machine, scratch: Path, command: str) -> None:
        self.config = config
        self.machine = machine
        self.notes: list[str] = []
        self.transform: Any = None
        """Run on each sample of raw files, as in a training."""
        self.make_sample_s = 0.0
        """Seconds that one sample takes to make, once that is known."""
        self._scratch = scratch
        self._command = command
        self.store = self._find_store()
        self.raw = None if self.store is not None else RawSource(config)
        self._copies: SampleStores | None = None
        self._kept: dict[tuple[Setting, bool], FastDataLoader] = {}
        self._decoded: StandardDataset | None = None
        """Raw files that are in memory, decoded for the first trial of it."""
        if config.find_batch_size:
            self.notes.append(
                f"batch_size: auto is found when a training starts; tuned for {config.batch_size}"
            )
        self.first = self._build(config)
        """The train split's loader with the settings as they are."""
        self.start = self._start()

    @property
    def sample_bytes(self) -> int:
        """A sample in memory, decoded."""
        if self.store is None:
            assert self.raw is not None
            return self.raw.sample_bytes
        return mean_bytes(self.store, self.store.positions("train"), is_restored=True)

    @property
    def num_samples(self) -> int:
        """Samples of the train split."""
        if isinstance(self.first, FastDataLoader):
            return len(self.first.store.positions("train"))
        return len(_dataset_of(self.first))

    @property
    def num_all(self) -> int:
        """Samples of all splits; of raw files about: those of other splits would have to be decoded."""
        if self.store is not None:
            return len(self.store)
        assert self.raw is not None
        num_rows = int((self.raw.job.splits == "train").sum())
        return -(-len(self.raw.job.manifest) * self.num_samples // max(1, num_rows))

    def encodable(self) -> tuple[str, ...]:
        """Fields that are worth another encoding."""
        if (store := self.store) is None:
            return ()
        positions = store.positions("train")
        return encodable_fields(store, lambda name: mean_bytes(store, positions, [name], is_restored=True))

    def form(self) -> str | None:
        """Which of the encodings those fields have already, if they have the same."""
        specs = [self.store.fields[name] for name in self.encodable()] if self.store is not None else []
        found = {(spec.encoding, spec.compression) for spec in specs}
        named = {tuple(form.values()): name for name, form in ENCODINGS.items()}
        return named.get(found.pop()) if len(found) == 1 else None

    def loader(self, setting: Setting, *, on_sample: bool) -> Loader:
        """A loader of this setting. What fills a cache when it is opened, or with use, is kept.

        Raises:
            LoaderError: it does not fit, or filling its cache takes too long.
        """
        key = (setting.changed(num_workers=0), on_sample)  # workers share what is kept
        if (known := self._kept.get(key)) is not None:
            known.adjust(num_workers=setting.num_workers, prefetch_factor=setting.prefetch_factor)
            return known
        if setting.cache == "memory" and self._decoded is not None:
            return self._over(self._decoded, setting)
        store, config = self.store, self._changed(setting)
        if on_sample:
            store = self._copy(setting)
            config = for_copy(config, len(store) / max(1, len(self.store or ())))
        found = self._build(config, store)
        if isinstance(found, FastDataLoader):
            if on_sample and self._is_cold(found.store):
                forget_pages(found.store)
        else:
            _dataset_of(found).transform = self.transform
            self._decoded = _dataset_of(found) if setting.cache == "memory" else self._decoded
        if isinstance(found, FastDataLoader) and setting.cache in ("decoded", "device"):
            self._keep(key, found)
        return found

    def fill_s(self, setting: Setting) -> float:
        """Seconds that filling its cache costs each sample that a whole training takes."""
        if setting.cache != "memory":
            return 0.0
        return self.make_sample_s * self.num_all / (self.num_samples * self.config.epochs)

    def _find_store(self) -> StoreReader | None:
        """The store, if a training would read it."""
        config, folder, command = self.config, self.config.preprocessed_data_dir, self._command
        if config.use_fast_loader is True:
            choose_builder(config, self.machine, lambda: command)  # says what is wrong
        if folder is None or not is_store(Path(folder)) or config.use_fast_loader is False:
            self.notes.append(f"raw files are decoded in every epoch; '{command}' makes a store of them")
            return None
        store = StoreReader(Path(folder))
        try:
            self.notes += refuse_stale(store, config, lambda: command)
        except LoaderError as error:
            self.notes.append(f"{error}. The raw files are tuned")
            return None
        return store

    def _build(self, config: Config, store: StoreReader | None = None) -> Loader:
        store = store or self.store
        builder: FastBuilder | StandardBuilder
        if store is not None:
            builder = FastBuilder(config, store, self.machine)
        else:
            assert self.raw is not None
            raw = self.raw if config.limit == self.config.limit else RawSource(config)
            builder = StandardBuilder(config, raw, self.machine)
        loader = builder.build("train")
        if loader is None:
            raise ConfigError(f"there is no train split to tune; there are: {', '.join(builder.splits)}")
        return loader

    def _over(self, dataset: StandardDataset, setting: Setting) -> Loader:
        """A loader over samples that are in memory already."""
        config = self._changed(setting)
        settings = settings_for(config, "train")
        decision = decide(settings, machine=self.machine, is_fast=False, all_preloaded=True)
        kind = Shuffled if is_shuffled(settings, "train") else Sequential
        return DataLoader(
            **loader_arguments(dataset, kind(len(dataset)), settings, config.seed, None),
            num_workers=decision.num_workers,
            prefetch_factor=decision.prefetch_factor,
            persistent_workers=decision.persistent_workers,
            multiprocessing_context=decision.multiprocessing_context,
        )

    def _start(self) -> Setting:
        """What the config comes to now."""
        config, loader = self.config, self.first
        if isinstance(loader, FastDataLoader):
            num_workers, depth = loader.prefetching
            cache, order = "device" if config.cache_on_device else "none", config.order
        else:
            num_workers, depth = loader.num_workers, loader.prefetch_factor or 1
            cache, order = "memory" if preload_setting(config, "train") else "none", "global"
        batch_size = settings_for(config, "train").batch_size
        return Setting(num_workers, depth if num_workers else 1, batch_size, cache, order)

    def _changed(self, setting: Setting) -> Config:
        """The config of a trial."""
        num_stored = None if self.store is None else len(self.store)
        return variant_of(self.config, setting, Samples(num_stored, self.num_all, self.make_sample_s))

    def _copy(self, setting: Setting) -> StoreReader:
        assert self.store is not None
        if self._copies is None:
            self._copies = SampleStores(
                self.store,
                self.store.positions("train"),
                self.encodable(),
                self._scratch,
                sample_bytes=self.sample_bytes,
                batch_size=setting.batch_size,
            )
        return self._copies.of(setting.encoding)

    def _is_cold(self, copy: StoreReader) -> bool:
        """Whether a whole store in the form of this copy is more than the memory holds."""
        assert self.store is not None
        num_bytes = sum(meta.size for meta in copy.meta.shards) / max(1, len(copy)) * len(self.store)
        return num_bytes > self.machine.free_bytes

    def _keep(self, key: tuple[Setting, bool], loader: FastDataLoader) -> None:
        """Hold on to a loader and its samples; older ones go where they would not fit beside it."""
        room = CACHE_SHARE * self.machine.free_bytes if key[0].cache == "decoded" else 0
        most = max(1, int(room / max(1, self.sample_bytes * self.num_samples)))
        while len(self._kept) >= most:
            self._kept.pop(next(iter(self._kept))).close()
        self._kept[key] = loader
        if key[0].cache == "decoded":
            self._fill(loader)

    def _fill(self, loader: Any) -> None:
        """One epoch fills the cache of decompressed samples."""
        seconds = self.make_sample_s * len(loader) * loader.batch_size
        if seconds > variant.MOST_FILL_S:
            raise LoaderError(f"an epoch, which fills the cache, takes {seconds:.0f} s: too long for a trial")
        for _ in loader:
            pass


def _dataset_of(loader: Any) -> StandardDataset:
    from flatout.train.loaders import dataset_of  # Lightning comes with it, which a store does not need

    return dataset_of(loader)
