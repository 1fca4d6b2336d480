"""RunData: what it gives back at the end, however the augmentation is wrapped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from flatout.bank import BankViews
from flatout.errors import LoaderError
from flatout.train.data import RunData


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_view_bank_is_closed_after_the_loader(is_wrapped: bool) -> None:
    store: Any = None
    bank = BankViews(store, "train")
    ended: list[bool] = []
    train = SimpleNamespace(close=lambda: ended.append(bank._is_closed))
    loaders: Any = SimpleNamespace(splits={"train": train})
    RunData(loaders, nn.Sequential(bank) if is_wrapped else bank).close()
    assert ended == [False]
    with pytest.raises(LoaderError, match="closed"):
        bank.bank  # noqa: B018


class Mover(LightningModule):
    """Has a way of its own to move batches."""

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return "moved by the module"


@pytest.mark.parametrize(
    ("module", "is_ahead", "is_training", "wanted"),
    [
        (LightningModule(), True, True, "same"),
        (LightningModule(), True, False, "equal"),
        (LightningModule(), False, True, "equal"),
        (Mover(), True, True, "own"),
        (Mover(), False, False, "own"),
    ],
)
def test_what_was_moved_ahead_is_not_moved_again_unless_the_module_has_its_own_way(
    module: LightningModule, is_ahead: bool, is_training: bool, wanted: str
) -> None:
    loaders: Any = SimpleNamespace(splits={"train": SimpleNamespace(is_ahead=is_ahead)})
    data, batch = RunData(loaders), {"x": torch.arange(3)}
    data.trainer = SimpleNamespace(lightning_module=module, training=is_training)  # type: ignore[assignment]
    moved = data.transfer_batch_to_device(batch, torch.device("cpu"), 0)
    if wanted == "own":
        assert moved == "moved by the module"
    else:
        assert (moved is batch) == (wanted == "same")
        assert moved["x"].equal(batch["x"])
