"""ResumableLoader: an ordinary DataLoader that knows where it stands: the standard path resumes, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from flatout.errors import LoaderStateError
from flatout.lazy import cached_property
from flatout.loader.ranks import rank_and_world
from flatout.loader.sampler import EpochSetter
from flatout.train.sample_draws import SampleDraws

KIND = "standard loader"
NAMES = {
    "world": "{} devices",
    "order": "order {}",
    "batch_size": "batch_size {}",
    "max_tokens": "max_tokens {}",
    "length_buckets": "length_buckets {}",
    "samples": "samples whose keys have the checksum {}",
    "num_batches": "{} batches an epoch",
}
"""What must be the same for a state to fit, as messages call it."""


class ResumableLoader:
    """The same batches as its DataLoader, from any of them on; epochs as `FastDataLoader` counts them.

    Samples follow from seed and epoch, and so does what their transform draws, if it is one of SampleDraws;
    torch itself would seed workers anew after a resume.
    """

    def __init__(self, loader: DataLoader[Any], describe: Callable[[], dict[str, Any]] = dict) -> None:
        """`describe` gives what the batches follow from, by name; it is asked once, for the first state."""
        self.loader = loader
        self._describe = describe
        self.sampler = EpochSetter(self)
        self._next = (0, 0)
        """Epoch and batch at which the next pass starts."""
        self._at = (0, 0)
        """Epoch and batch up to which the newest pass has come."""
        self.draws: SampleDraws | None = None
        """What is told the epoch of the samples that are made."""

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """A pass; as a generator it does nothing before its first `next`."""
        epoch, batch = self._at = self._next
        self._next = (epoch + 1, 0)
        stream, made_by = self._stream(epoch, batch), self.loader
        while True:
            if self.loader is not made_by and batch < len(self):
                del stream  # its workers end before others start
                made_by = self.loader
                stream = self._stream(epoch, batch)
            try:
                value = next(stream)
            except StopIteration:
                return
            batch += 1
            self._at = (epoch, batch)
            yield value

    @property
    def prefetching(self) -> tuple[int, int]:
        """Workers, and batches ahead of each."""
        return self.loader.num_workers, self.loader.prefetch_factor or 1

    def adjust(self, *, num_workers: int | None = None, prefetch_factor: int | None = None) -> None:
        """Other numbers of workers and of batches ahead, from the next batch on: they start anew there.

        The batches stay the same, except for what a transform draws that is none of SampleDraws.
        """
        workers, depth = self.prefetching
        workers, depth = num_workers or workers, prefetch_factor or depth
        if workers and (workers, depth) != self.prefetching:
            self.loader = self._like({}, num_workers=workers, prefetch_factor=depth)

    def set_epoch(self, epoch: int) -> None:
        """The next pass runs this epoch: from its start, or from where a loaded state of it stood."""
        if epoch != self._next[0]:
            self._next = self._at = (epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the newest pass stands."""
        epoch, batch = self._at
        return {"kind": KIND, "epoch": epoch, "batch": batch, **self._rests_on()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass continues where the state was taken.

        Raises:
            LoaderStateError: it is a state of a store's loader, or of other batches, where its place is
                that of other samples.
        """
        if state.get("kind") != KIND:
            raise LoaderStateError(
                "the checkpoint was made with the fast loader, this run reads raw files: prepare the store, or "
                "start without --resume"
            )
        for name, here in self._rests_on().items():
            saved = state.get(name, here)  # older states know the number of batches only
            if saved != here:
                raise LoaderStateError(
                    f"the checkpoint has {NAMES[name].format(saved)}, this run {here}: the standard loader "
                    "resumes with the same data, batch size and devices only; use those, or no --resume"
                )
        epoch, batch = int(state["epoch"]), int(state["batch"])
        self._next = self._at = (epoch + 1, 0) if batch >= len(self) else (epoch, batch)

    def _rests_on(self) -> dict[str, Any]:
        """What the place in an epoch means something with; only equal ones lead to the same samples."""
        return {"world": rank_and_world()[1], **self._described, "num_batches": len(self)}

    @cached_property
    def _described(self) -> dict[str, Any]:
        return self._describe()

    def close(self) -> None:
        """Nothing to do: workers end with their loader."""

    def _stream(self, epoch: int, batch: int) -> Iterator[Any]:
        self.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        if self.draws is not None:
            self.draws.set_epoch(epoch)
        if not batch:
            return iter(self.loader)
        return iter(self._rest(batch))

    def _rest(self, batch: int) -> DataLoader[Any]:
        """A DataLoader over the batches that are left: the others are not decoded once more."""
        loader = self.loader
        is_whole = loader.batch_sampler is None  # each item of the sampler is a batch already
        items: Any = loader.sampler if is_whole else loader.batch_sampler
        wanted = list(islice(items, batch, None))
        return self._like(
            {"sampler": wanted, "batch_size": None} if is_whole else {"batch_sampler": wanted},
            persistent_workers=False,
        )

    def _like(self, batches: dict[str, Any], **changes: Any) -> DataLoader[Any]:
        """A DataLoader over these batches, or over all of its own; other settings are kept or changed."""
        loader = self.loader
        own: dict[str, Any] = {"sampler": loader.sampler, "batch_size": loader.batch_size}
        own |= {} if loader.batch_size is None else {"drop_last": loader.drop_last}
        settings = {
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            **changes,
        }
        return DataLoader(
            loader.dataset,
            **(batches or own),
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            generator=loader.generator,
            multiprocessing_context=loader.multiprocessing_context,
            **settings,
        )
