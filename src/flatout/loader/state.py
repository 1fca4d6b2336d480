"""The loader's state: a few numbers that say exactly where an epoch stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flatout.errors import LoaderStateError

VERSION = 1


@dataclass(frozen=True, slots=True)
class LoaderState:
    """Where a loader is: samples yielded to the user by all ranks; not batches, not prefetched ones."""

    order: str
    """Name and version of the order."""
    seed: int
    epoch: int
    samples: int
    num_samples: int
    global_batch: int
    """Samples of one batch of all ranks, or with `max_tokens` what their number is a multiple of; kept when the
    number of ranks changes."""
    store: str
    """Content hash of the store."""
    keys: str
    """Checksum of the split's keys as they stand in the store: a content hash knows neither split nor order."""
    max_tokens: int | None = None
    """Tokens of a rank's batch at the most, where batches are made by tokens; kept like `global_batch`."""
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> LoaderState:
        """What `to_dict` gave.

        Raises:
            LoaderStateError: it is something else, or of another version.
        """
        if state.get("version") != VERSION:
            raise LoaderStateError(
                f"this is no state of a flatout loader (version {state.get('version')}, wanted {VERSION})"
            )
        try:
            loaded = cls(**state)
        except TypeError as error:
            raise LoaderStateError(f"this state is incomplete: {error}") from error
        for name in ("seed", "epoch", "samples", "num_samples", "global_batch"):
            if not isinstance(value := getattr(loaded, name), int):
                raise LoaderStateError(f"this state has {name} {value!r}: a whole number is wanted")
        if not 0 <= loaded.samples <= loaded.num_samples or loaded.global_batch < 1 or loaded.epoch < 0:
            raise LoaderStateError(
                f"the saved state stands at sample {loaded.samples} of {loaded.num_samples} of epoch "
                f"{loaded.epoch}, in batches of {loaded.global_batch}: no loader stands there"
            )
        return loaded

    def check_fits(self, here: LoaderState) -> None:
        """Refuse a state of other data or another order.

        Raises:
            LoaderStateError: naming what differs.
        """
        for name in ("store", "num_samples", "keys", "order", "seed"):
            saved, wanted = getattr(self, name), getattr(here, name)
            if saved != wanted:
                raise LoaderStateError(
                    f"the saved state has {name} {saved}, this loader has {wanted}: the samples left of its "
                    "epoch are not these. Use the same store and settings, or start without the state"
                )

    def check_ranks(self, world: int) -> None:
        """Refuse more ranks than a batch of all of them has samples.

        Raises:
            LoaderStateError: with the numbers and what to change.
        """
        if self.global_batch < world:
            raise LoaderStateError(
                f"the saved epoch has {self.global_batch} samples a batch for all ranks together, too few for "
                f"{world} ranks. Use {self.global_batch} ranks at the most, or start without the state"
            )
