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
    ("module", "device", "wanted"),
    [
        (LightningModule(), "cpu", "same"),
        (LightningModule(), "meta", "moved"),
        (Mover(), "cpu", "own"),
        (Mover(), "meta", "own"),
    ],
)
def test_what_is_there_is_not_moved_again_unless_the_module_has_its_own_way(
    module: LightningModule, device: str, wanted: str
) -> None:
    """One value that is not there is enough: a module may add it before batches are moved."""
    loaders: Any = SimpleNamespace(splits={})
    there = torch.zeros(3, device=device)
    data, batch = RunData(loaders), {"x": there, "added": torch.arange(3)}
    data.trainer = SimpleNamespace(lightning_module=module)  # type: ignore[assignment]
    moved = data.transfer_batch_to_device(batch, torch.device(device), 0)
    if wanted == "own":
        assert moved == "moved by the module"
    else:
        assert (moved is batch) == (wanted == "same")
        assert {value.device.type for value in moved.values()} == {device}
