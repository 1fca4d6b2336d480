"""ViewBank: precomputed views of every sample, drawn anew every few epochs behind the training's back.

Epochs r .. r + n - 1 are served from views drawn for epoch r, a multiple of n = `view_cache_refresh_epochs`.
While they are used, a process of lowest priority makes those of epoch r + n. They are swapped as a whole when
the first batch of that epoch is asked for. So what a sample looks like in an epoch depends on (seed, n, epoch,
key) alone: not on threads, ranks, how long a refresh took, or where the run was resumed.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from flatout.augment.ready import AugmentationConfig
from flatout.augment.transform import Augmentation
from flatout.bank.chain import config_chain
from flatout.bank.diversity import Diversity
from flatout.bank.fields import find_signal
from flatout.bank.generation import Generation
from flatout.bank.order import ViewOrder
from flatout.bank.place import PrivateFolder, generation_folder, generations, remove_generation
from flatout.bank.recipe import SampleTransform, ViewRecipe
from flatout.bank.refresh import Refresh, make_shared
from flatout.config import Config
from flatout.config.augmentation import AugmentSettings
from flatout.config.fields import Encoding
from flatout.errors import ConfigError, LoaderError, LoaderStateError
from flatout.loader import FastDataset
from flatout.loader.samples import mean_bytes
from flatout.store import StoreReader

REFRESH_EPOCHS: int = AugmentSettings.model_fields["view_cache_refresh_epochs"].default
PATIENCE_S = 2.0
"""How long an epoch waits for the process behind: to start others takes about as long."""

Batch = dict[str, Tensor]


class ViewBank:
    """Call it with a loader's batch and its epoch: the batch with view1, view2, subs1 and subs2 comes out.

    Give it to a loader (`FastDataLoader(..., augment=bank)`), which calls it with each batch and the epoch it
    belongs to; or wrap it for a torch DataLoader with `ViewDataset`.

    Args:
        store: a store, its folder, or a FastDataset of the split.
        split: whose views; every sample's by default.
        field: what the views are of; absent: the store's only signal.
        transform: (C, T) array in, array out, sample by sample: anything that runs on a CPU, such as SciPy's
            filters. A parameter `rng` gets a NumPy generator; the global streams are seeded for each view.
        chain: batched transforms, after `transform`; absent: those of `config`, unless there is a transform.
        config: the augmentation's settings for that chain; a whole config gives seed and interval, too.
        seed: what everything is drawn from; 0 by default.
        num_views: views of a sample.
        num_substructures: parts that each view is cut into; 0: none.
        view_cache_refresh_epochs: epochs that a set of views is used for; absent: as dataset or config say.
        folder: where the views are kept from one run to the next, as stores; absent: in memory, as long as the
            bank lives.
        background: make the next views while these are used; else when they are asked for.
        num_workers: processes that make the views a training waits for; one a core by default.
        encoding: `float16` halves the memory.

    Raises:
        ConfigError: there is no such split or field, or a setting is impossible.

    Example:
        >>> bank = ViewBank("store", "train", transform=my_filtfilt, seed=7)                 # doctest: +SKIP
        >>> loader = FastDataLoader("store", 64, split="train", shuffle=True, augment=bank)  # doctest: +SKIP
    """

    def __init__(
        self,
        store: FastDataset | StoreReader | str | Path,
        split: str | None = None,
        *,
        field: str | None = None,
        transform: SampleTransform | None = None,
        chain: Augmentation | None = None,
        config: AugmentationConfig = None,
        seed: int | None = None,
        num_views: int = 2,
        num_substructures: int = 4,
        view_cache_refresh_epochs: int | None = None,
        folder: str | Path | None = None,
        background: bool = True,
        num_workers: int | None = None,
        encoding: Encoding = "none",
    ) -> None:
        every = view_cache_refresh_epochs
        if isinstance(store, FastDataset):
            split = store.split if split is None else split
            every = store.view_cache_refresh_epochs if every is None else every
            store = store.store
        known = config if isinstance(config, Config) else None
        every = (known.view_cache_refresh_epochs if known else REFRESH_EPOCHS) if every is None else every
        seed = (known.seed if known else 0) if seed is None else seed
        if every < 1:
            raise ConfigError(f"view_cache_refresh_epochs: got {every}, wanted 1 or more")
        reader = store if isinstance(store, StoreReader) else StoreReader(store)
        field = find_signal(reader, field)
        if transform is None and chain is None:
            chain = config_chain(reader, field, config)
        recipe = ViewRecipe(transform, chain, seed, num_views, num_substructures)
        dataset = FastDataset(reader, split, fields=[field])
        self.view_cache_refresh_epochs = every
        self.waited_s = 0.0
        """Seconds that whoever asked waited for views to be made, the first ones included."""
        self._order = ViewOrder(dataset, field, recipe, encoding=encoding)
        self._background = background
        self._num_workers = num_workers
        self._private = PrivateFolder(self._most_bytes()) if folder is None else None
        self.folder = Path(folder or "") if self._private is None else self._private.path
        self._lock = threading.RLock()
        self._served: Generation | None = None
        self._running: list[Refresh] = []
        """The views that are being made for later; one at the most."""
        self._stop = weakref.finalize(self, _stop, self._running, os.getpid())
        self._forced: int | None = None
        self._epochs: set[int] = set()
        self._refreshes: set[int] = set()
        self._closed = False

    @property
    def names(self) -> list[str]:
        """What the bank adds to a batch."""
        return self._order.recipe.names

    @property
    def diversity(self) -> Diversity:
        """How many distinct views each sample has been seen as so far."""
        return Diversity(len(self._epochs), len(self._refreshes), self._order.recipe.num_views)

    def __call__(self, batch: Mapping[str, Tensor], epoch: int) -> Batch:
        """The batch with the views that its samples have in this epoch.

        Raises:
            LoaderError: a sample has no views, or they could not be made.
        """
        return {**batch, **self.generation(epoch).fetch(batch["key"])}

    def refresh_view_cache(self, epoch: int, force: bool = False) -> None:
        """Have the views of this epoch ready, drawn anew if it is their turn; wait for them if need be.

        Args:
            force: draw them for this epoch although it is not their turn. The next turn comes as ever.

        Raises:
            LoaderError: they could not be made.
        """
        if force:
            self._forced = epoch
        self.generation(epoch)

    def drawn_in(self, epoch: int) -> int:
        """The epoch that the views of this epoch are drawn for."""
        turn = epoch - epoch % self.view_cache_refresh_epochs
        is_forced = self._forced is not None and turn <= self._forced <= epoch
        return self._forced if is_forced else turn  # type: ignore[return-value]

    def generation(self, epoch: int) -> Generation:
        """The views that this epoch is served from; never some of them."""
        with self._lock:
            wanted = self.drawn_in(epoch)
            if self._served is None or self._served.epoch != wanted:
                self._swap(wanted)
            assert self._served is not None
            self._epochs.add(epoch)
            self._refreshes.add(wanted)
            return self._served

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know beside the epoch: a forced refresh, and what was seen so far."""
        return {
            "seed": self._order.recipe.seed,
            "view_cache_refresh_epochs": self.view_cache_refresh_epochs,
            "forced": self._forced,
            "epochs": sorted(self._epochs),
            "refreshes": sorted(self._refreshes),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue as the bank that gave the state.

        Raises:
            LoaderStateError: it had another seed or refresh interval: its epochs had other views.
        """
        here = self.state_dict()
        for name in ("seed", "view_cache_refresh_epochs"):
            if state.get(name) != here[name]:
                raise LoaderStateError(
                    f"the saved view bank has {name} {state.get(name)}, this one has {here[name]}: its views "
                    "were others. Use the same settings, or start without the state"
                )
        with self._lock:
            self._forced = state["forced"]
            self._epochs, self._refreshes = set(state["epochs"]), set(state["refreshes"])

    def close(self) -> None:
        """Stop making views; those in memory are given back. Batches that were handed out stay as they are."""
        with self._lock:
            self._closed = True
            self._stop()
            self._served = None
            if self._private is not None:
                self._private.remove()

    def __enter__(self) -> ViewBank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a ViewBank makes views for one process; hand over a ViewDataset instead")

    def _swap(self, wanted: int) -> None:
        """Serve the views of another epoch, made by now or made now, and begin with the next."""
        if self._closed:
            raise LoaderError("this view bank is closed; make a new one")
        started = time.perf_counter()
        place = generation_folder(self.folder, wanted)
        upcoming = wanted - wanted % self.view_cache_refresh_epochs + self.view_cache_refresh_epochs
        if not self._is_made(wanted, upcoming):
            make_shared(self._order.at(wanted), place, num_workers=self._num_workers)
        self.waited_s += time.perf_counter() - started
        self._served = Generation(place, wanted)
        self._remove_old(wanted, upcoming - 2 * self.view_cache_refresh_epochs)
        if self._background and not self._running:
            self._running.append(Refresh(self._order.at(upcoming), generation_folder(self.folder, upcoming)))

    def _is_made(self, wanted: int, upcoming: int) -> bool:
        """Whether the process behind has made the views, or has them in a moment.

        If not, it is ended: now that everybody waits all cores take over, from the shards it has finished.
        """
        if not self._running or self._running[0].epoch == upcoming:
            return False
        refresh = self._running.pop()
        try:
            return refresh.epoch == wanted and refresh.wait(PATIENCE_S)
        finally:
            refresh.stop()

    def _remove_old(self, wanted: int, before: int) -> None:
        """Memory of our own is given back at once. In a shared folder another rank may be one turn behind."""
        upcoming = {refresh.epoch for refresh in self._running}
        for epoch, path in generations(self.folder).items():
            is_old = epoch != wanted if self._private is not None else epoch < before
            if is_old and epoch not in upcoming:
                remove_generation(path)

    def _most_bytes(self) -> int:
        """What two generations take: the one that is used and the one that is being made."""
        dataset, recipe = self._order.dataset, self._order.recipe
        sample = mean_bytes(dataset.store, dataset.positions, dataset.fields, is_restored=True)
        copies = recipe.num_views * (2 if recipe.num_substructures else 1)
        return 2 * sample * copies * len(dataset)


def _stop(running: list[Refresh], pid: int) -> None:
    if os.getpid() == pid:  # a forked child ends, too, and the process is not its own
        while running:
            running.pop().stop()
