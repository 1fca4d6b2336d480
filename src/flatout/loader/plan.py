"""BatchPlan: what is asked of a loader's batches; with rank and number of ranks, the batches themselves."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from flatout.errors import ConfigError
from flatout.lazy import cached_property
from flatout.loader import buckets, token_plan
from flatout.loader.batches import BLOCK, Batches, BatchRule, EvenBatches
from flatout.loader.buckets import Bucketed
from flatout.loader.order import Order, Sequential, Shuffled
from flatout.loader.token_plan import TokenPlan
from flatout.loader.tokens import TokenBatches
from flatout.types import Array


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """One of three: batches of `batch_size`; these from samples of similar length; or batches by tokens.

    Raises:
        ConfigError: `max_tokens` with an order that may repeat samples.
    """

    order: Order
    batch_size: int
    drop_last: bool = False
    lengths: Array | None = None
    """Padded length of each sample; given, batches are made of samples of similar length."""
    max_tokens: int | None = None
    """Padded length x samples of a rank's batch at the most; replaces `batch_size`."""

    def __post_init__(self) -> None:
        if not hasattr(self.batch_size, "__index__"):
            raise ConfigError(f"batch_size {self.batch_size!r}: a whole number is needed")
        if self.batch_size < 1:
            raise ConfigError(f"batch_size {self.batch_size}: at least 1 is needed")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens {self.max_tokens}: at least 1 is needed")
        if self.max_tokens is not None and not isinstance(self.order, Shuffled | Sequential):
            raise ConfigError(
                f"max_tokens: batches are planned over all samples, each once; the order {self.order.name} "
                "cannot be kept. Shuffle globally or not at all, or use length_buckets"
            )

    def batches(
        self, rank: int, world: int, global_batch: int | None = None, max_tokens: int | None = None
    ) -> Batches:
        """The batches of one rank.

        Args:
            global_batch, max_tokens: as a saved state has them, if one is continued.
        """
        if self.max_tokens is not None:
            return self._token_batches(rank, world, global_batch or world, max_tokens or self.max_tokens)
        total = global_batch or self.batch_size * world
        rule = BatchRule(self.order.num_samples, total, rank, world, self.drop_last)
        if self.lengths is None:
            return EvenBatches(self.order, rule)
        name = f"{self.order.name}+buckets-{buckets.VERSION}-{self._digest}"
        order = Bucketed(self.order, self.lengths, total, self._seed, name)
        return EvenBatches(order, rule, -(-BLOCK // order.window) * order.window)

    def _token_batches(self, rank: int, world: int, ranks: int, max_tokens: int) -> TokenBatches:
        assert self.lengths is not None
        name = f"{self.order.name}+tokens-{token_plan.VERSION}-{self._digest}"
        plan = TokenPlan.of(self.lengths, max_tokens, ranks, self._seed, name)
        return TokenBatches(plan, rank, world, self.drop_last)

    @property
    def _seed(self) -> int | None:
        """What shuffles batches; None where the order does not shuffle."""
        return None if isinstance(self.order, Sequential) else getattr(self.order, "seed", 0)

    @cached_property
    def _digest(self) -> str:
        """Other lengths (another max_sequence_length) are other batches: a state must not fit them."""
        lengths = np.ascontiguousarray(self.lengths, dtype="<i8")
        return f"{zlib.crc32(lengths.data):08x}"
