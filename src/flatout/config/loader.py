"""How batches are made: the settings of a loader, and the sections that change them for one split."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, PositiveInt, SerializerFunctionWrapHandler, model_serializer

from flatout.config.workers import WorkerSettings


class LoaderSettings(WorkerSettings):
    """Settings of one loader; `train_ds`, `validation_ds` and `test_ds` may change each of them."""

    batch_size: PositiveInt = 8
    """Samples a batch on each device. Larger batches keep a GPU busier and take more of its memory."""
    prefetch_factor: PositiveInt | None = 4
    """Batches made ahead by each worker; costs num_workers x prefetch_factor batches of memory."""
    persistent_workers: bool = True
    """Keep worker processes between epochs (standard loader only): no restart, more memory."""
    pin_memory: bool = True
    """Copy to the GPU from page-locked memory; without CUDA it has no effect."""
    drop_last: bool = False
    """Leave out the last, short batch of an epoch."""
    shuffle: bool | None = None
    """Visit samples in a new order each epoch; absent: train yes, other splits no."""
    use_dynamic_padding: bool = True
    """Pad ragged samples to the longest of their batch instead of `max_sequence_length`."""
    max_sequence_length: PositiveInt | None = None
    """Steps of a ragged sample that are kept; shorter is faster and needs less memory."""
    sequence_crop: Literal["head", "tail", "random"] = "head"
    """Which steps of a longer sample are kept: the first, the last, or other ones in each epoch."""
    pad_to_multiple: PositiveInt = 1
    """Round padded lengths up to a multiple: a few shapes suit kernels and compilers better than many."""
    length_buckets: bool = False
    """Make batches of ragged samples of similar length: less padding, batches slightly less random."""
    max_tokens: PositiveInt | None = None
    """Replaces `batch_size` for ragged samples: as many of similar length as padded length x samples allows."""


def _drop_defaults(schema: dict[str, Any]) -> None:
    for described in schema["properties"].values():
        described.pop("default", None)


class SplitLoaderSection(LoaderSettings):
    """What one split's loader does differently; keys that are not given follow the top level."""

    model_config = ConfigDict(json_schema_extra=_drop_defaults)

    @model_serializer(mode="wrap")
    def _given_only(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only what was given: a written default would win over the top level when read again."""
        return {key: value for key, value in serialise(self).items() if key in self.model_fields_set}


class SplitSettings(LoaderSettings):
    """Loader settings with their exceptions for single splits."""

    train_ds: SplitLoaderSection = Field(default_factory=SplitLoaderSection)
    """Loader settings of the train split."""
    validation_ds: SplitLoaderSection = Field(default_factory=SplitLoaderSection)
    """Loader settings of the val split."""
    test_ds: SplitLoaderSection = Field(default_factory=SplitLoaderSection)
    """Loader settings of the test split."""

    def loader_for(self, split: str) -> LoaderSettings:
        """The loader settings that hold for `split`: the top level with that split's section over it."""
        common = {key: getattr(self, key) for key in LoaderSettings.model_fields}
        section = SECTION_OF.get(split)
        changed = getattr(self, section).model_dump() if section else {}
        return LoaderSettings.model_validate({**common, **changed})


SECTION_OF = {"train": "train_ds", "val": "validation_ds", "test": "test_ds"}
"""The section that holds a split's exceptions; other splits have none."""
