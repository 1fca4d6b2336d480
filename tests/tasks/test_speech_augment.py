"""Recordings slower and faster: by their own length, in any batch, and never too fast for their text."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from flatout.config.augmentation import AugmentationSection
from flatout.tasks.speech_augment import VaryBatch, VarySample, stretched

NOTHING = {"time_stretch": {"p": 0.0}, "gaussian_noise": {"p": 0.0}, "time_mask": {"p": 0.0}}


def section_of(**settings: Any) -> AugmentationSection:
    return AugmentationSection.model_validate({**NOTHING, **settings})


def batch_of(num: int = 16, width: int = 900) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.linspace(300, width, num).long()
    signal = torch.randn(num, 1, width, generator=generator)
    signal[torch.arange(width) >= lengths[:, None, None].expand(-1, 1, width)] = 0.0
    texts = torch.full((num, 6), ord("a"), dtype=torch.uint8)
    return {
        "audio": signal,
        "audio_length": lengths,
        "text": texts,
        "text_length": torch.arange(num) % 7,
        "key": torch.arange(num) * 7919,
    }


def vary(batch: dict[str, torch.Tensor], epoch: int = 1, text: str | None = None, **settings: Any) -> Any:
    return VaryBatch("audio", section_of(**settings), 3, text, 50)(batch, epoch)


@pytest.mark.parametrize(
    "settings",
    [
        {"time_stretch": {"p": 0.7, "range": (0.8, 1.3)}},
        {"gaussian_noise": {"p": 0.7, "std": 0.1}},
        {"time_mask": {"p": 0.7, "num_masks": 3, "max_fraction": 0.2}},
    ],
)
def test_drawn_by_key_and_epoch_whatever_the_batch(settings: dict[str, Any]) -> None:
    batch = batch_of()
    made = vary(batch, **settings)
    assert torch.equal(vary(batch, **settings)["audio"], made["audio"])
    assert not torch.equal(vary(batch, 2, **settings)["audio"], made["audio"])
    short = {name: value[:3] for name, value in batch.items()}
    short["audio"] = short["audio"][:, :, : int(short["audio_length"].max())]
    alone = vary(short, **settings)
    assert torch.equal(alone["audio_length"], made["audio_length"][:3])
    for row, other, num in zip(alone["audio"], made["audio"], alone["audio_length"].tolist(), strict=False):
        assert torch.equal(row[:, :num], other[:, :num])
    behind = torch.arange(made["audio"].shape[2]) >= made["audio_length"][:, None]
    assert not made["audio"][behind[:, None]].any()


def test_nothing_changes_where_nothing_is_to() -> None:
    batch = batch_of()
    made = vary(batch)
    assert torch.equal(made["audio_length"], batch["audio_length"])
    assert torch.equal(made["audio"][:, :, :900], batch["audio"])
    assert not made["audio"][:, :, 900:].any()
    assert made["text"] is batch["text"]


def test_a_stretch_is_that_of_numpy() -> None:
    batch = batch_of()
    made = vary(batch, time_stretch={"p": 1.0, "range": (0.7, 1.4)})
    shares = made["audio_length"] / batch["audio_length"]
    assert 0.69 < float(shares.min()) < 0.85
    assert 1.2 < float(shares.max()) < 1.41
    before, num = batch["audio"][5, :, : batch["audio_length"][5]].numpy(), int(made["audio_length"][5])
    found = [
        stretched(before, share)
        for share in np.linspace(num / before.shape[1], (num + 1) / before.shape[1], 50)
    ]
    near = min(np.abs(one[:, : num - 2] - made["audio"][5, :, : num - 2].numpy()).max() for one in found)
    assert near < 0.2  # the share itself is not known from the outside; white noise is never near by chance


def test_nothing_is_too_fast_for_its_text() -> None:
    fastest = {"time_stretch": {"p": 1.0, "range": (0.3, 0.3)}}
    batch = batch_of()
    free, bound = vary(batch, **fastest), vary(batch, text="text", **fastest)
    least = torch.minimum(batch["text_length"] * 50, batch["audio_length"])
    assert (free["audio_length"] < least).any()
    assert (bound["audio_length"] >= least - 1).all()
    assert (bound["audio_length"] <= batch["audio_length"]).all()
    single = VarySample("audio", section_of(**fastest), "text", 50)
    sample = {"audio": batch["audio"][0, :, :300], "text": torch.zeros(5, dtype=torch.uint8)}
    assert single(sample)["audio"].shape[1] >= 249


def test_noise_has_its_level_and_masks_their_length() -> None:
    batch = {**batch_of(64, 4000), "audio_length": torch.full((64,), 4000)}
    batch["audio"] = torch.randn(64, 1, 4000, generator=torch.Generator().manual_seed(1)) * 5.0
    noisy = vary(batch, gaussian_noise={"p": 1.0, "std": 0.2})["audio"] - batch["audio"]
    torch.testing.assert_close(noisy.std(), torch.tensor(1.0), atol=0.05, rtol=0.0)
    assert abs(float(noisy.mean())) < 0.02
    gaps = (vary(batch, time_mask={"p": 1.0, "max_fraction": 0.4})["audio"] == 0).float().mean((1, 2))
    assert float(gaps.max()) <= 0.401
    assert 0.1 < float(gaps.mean()) < 0.3


def test_one_sample_is_varied_alike() -> None:
    settings = {
        "time_stretch": {"p": 1.0, "range": (0.8, 1.2)},
        "gaussian_noise": {"p": 1.0, "std": 0.1},
        "time_mask": {"p": 1.0, "num_masks": 2, "max_fraction": 0.2},
    }
    single = pickle.loads(pickle.dumps(VarySample("audio", section_of(**settings), None, 50)))  # to a worker
    np.random.seed(0)
    sample = {"audio": torch.ones(1, 1000), "label": torch.tensor(1)}
    made = [single(sample)["audio"] for _ in range(30)]
    assert all(one.dtype == torch.float32 and one.shape[0] == 1 for one in made)
    assert min(one.shape[1] for one in made) < 900
    assert max(one.shape[1] for one in made) > 1100
    assert all((one == 0).float().mean() <= 0.41 for one in made)
    assert np.mean([float((one == 0).float().mean()) for one in made]) > 0.1
    assert torch.equal(sample["audio"], torch.ones(1, 1000))


def test_augmentations_differ_in_what_they_say_of_themselves() -> None:
    """A resumed run compares these texts."""
    one, other = (str(VaryBatch("audio", section_of(time_mask={"p": p}), 3, None, 50)) for p in (0.1, 0.2))
    assert one != other
