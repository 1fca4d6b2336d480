"""From settings to batches: the rule for ragged samples, and how an ordinary DataLoader follows a plan."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.config import LoaderSettings
from flatout.loader.collate import Collate
from flatout.loader.lengths import RaggedRule, planned_lengths
from flatout.loader.notes import Change
from flatout.loader.order import Order
from flatout.loader.plan import BatchPlan
from flatout.loader.raw_lengths import raw_lengths
from flatout.loader.sampler import DrawnSamples, OrderSampler, PlanSampler
from flatout.loader.standard import StandardDataset
from flatout.store import StoreReader
from flatout.types import Array


def ragged_rule(settings: LoaderSettings) -> RaggedRule:
    """How ragged samples are cut and padded."""
    return RaggedRule(
        max_length=settings.max_sequence_length,
        crop=settings.sequence_crop,
        multiple=settings.pad_to_multiple,
        to_max=not settings.use_dynamic_padding,
    )


def ragged_notes(settings: LoaderSettings) -> list[str]:
    """What the settings on ragged samples lack, and what has no effect."""
    notes: list[str] = []
    if not settings.use_dynamic_padding and settings.max_sequence_length is None:
        notes.append(
            Change("use_dynamic_padding: false needs max_sequence_length; padded to the longest of each batch")
        )
    if settings.sequence_crop != "head" and settings.max_sequence_length is None:
        notes.append(
            Change(f"sequence_crop: {settings.sequence_crop} needs max_sequence_length; nothing is cut")
        )
    if settings.max_tokens is not None and "batch_size" in settings.model_fields_set:
        notes.append(Change("batch_size: no effect with max_tokens"))
    return notes


def with_mean_batch(settings: LoaderSettings, store: StoreReader, positions: Array) -> LoaderSettings:
    """With `max_tokens`, the settings with the batch size that it comes to on average, to reckon memory with.

    Raises:
        ConfigError: no field is ragged, or a sample exceeds `max_tokens`; it is named.
    """
    if settings.max_tokens is None:
        return settings
    lengths = planned_lengths(store, positions, ragged_rule(settings), settings.max_tokens)
    mean = max(1.0, float(np.mean(lengths)))
    return settings.model_copy(update={"batch_size": max(1, int(settings.max_tokens / mean))})


def loader_arguments(
    dataset: StandardDataset, order: Order, settings: LoaderSettings, seed: int, store: StoreReader | None
) -> dict[str, Any]:
    """Dataset, sampler and collate function of an ordinary DataLoader that gives the fast path's batches.

    Args:
        store: one of the same settings, if there is one; it knows the samples' lengths.
    """
    rule = ragged_rule(settings)
    collate = Collate(dataset.fields, rule)
    is_by_length = settings.length_buckets or settings.max_tokens is not None
    if not is_by_length and rule.crop != "random":
        return {
            "dataset": dataset,
            "batch_size": settings.batch_size,
            "sampler": OrderSampler(order, settings.batch_size, settings.drop_last),
            "drop_last": settings.drop_last,
            "collate_fn": collate,
        }
    lengths = raw_lengths(dataset, store, rule, settings.max_tokens) if is_by_length else None
    plan = BatchPlan(order, settings.batch_size, settings.drop_last, lengths, settings.max_tokens)
    return {
        "dataset": DrawnSamples(dataset),
        "batch_size": None,
        "sampler": PlanSampler(plan, seed),
        "collate_fn": collate.drawn,
    }
