"""RunData: loaders and augmentation as Lightning's data module, with the state that a resumed run needs."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn

from flatout.bank import BankViews
from flatout.errors import LoaderStateError
from flatout.train.loaders import RunLoaders
from flatout.train.speed import MemoryFormat
from flatout.train.task import Augment, Batch
from flatout.train.waits import RunLoader


class RunData(LightningDataModule):
    """Hands the loaders over, augments train batches on the device, and carries both states in checkpoints.

    Lightning saves a loader's state by itself, but drops it where `configure_optimizers` reads
    `trainer.estimated_stepping_batches`; that of a data module it always keeps.
    """

    def __init__(
        self,
        loaders: RunLoaders,
        augmentation: Augment | None = None,
        *,
        seed: int = 0,
        layout: MemoryFormat | None = None,
        is_ahead: bool = False,
    ) -> None:
        """With `is_ahead`, train batches are moved and augmented while the step before them runs."""
        super().__init__()
        self.loaders = loaders
        self.augmentation = augmentation
        self.seed = seed
        self.layout = layout
        self.is_ahead = is_ahead
        self._device = torch.device("cpu")
        self._bank = _bank_of(augmentation)

    @property
    def train_loader(self) -> RunLoader:
        """The loader that is trained from."""
        return self.loaders.splits["train"]

    def train_dataloader(self) -> RunLoader:
        if self.is_ahead:
            assert self.trainer is not None
            self.train_loader.finish_ahead(self.finish, self.trainer.strategy.root_device)
        return self.train_loader

    def val_dataloader(self) -> RunLoader | list[Any]:
        return self.loaders.splits.get("val", [])

    def test_dataloader(self) -> RunLoader | list[Any]:
        return self.loaders.splits.get("test", [])

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Any:
        """As the module does it; of a batch that is there, which takes Lightning 0.35 ms to see, at once."""
        assert self.trainer is not None
        move = self.trainer.lightning_module.transfer_batch_to_device
        is_own = getattr(move, "__func__", None) is not LightningModule.transfer_batch_to_device
        if not is_own and type(batch) is dict and all(_is_on(value, device) for value in batch.values()):
            return batch
        return move(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Any:
        """Augment, in training alone; then what the module itself does with a batch that has arrived."""
        trainer = self.trainer
        assert trainer is not None
        if not trainer.training:
            batch = self._laid_out(batch)
        elif not self.train_loader.is_ahead:
            started = perf_counter_ns()
            batch = self.finish(batch, trainer.current_epoch)
            if self._bank is not None:  # its views are read, or waited for: data, not work
                self.train_loader.waits.total_ns += perf_counter_ns() - started
        return trainer.lightning_module.on_after_batch_transfer(batch, dataloader_idx)

    def finish(self, batch: Batch, epoch: int) -> Batch:
        """A train batch on its device in, augmented and in the layout of the weights out."""
        if self.augmentation is not None:
            self._move_augmentation(batch["key"].device)
            batch = self.augmentation(batch, epoch)
        return self._laid_out(batch)

    def _laid_out(self, batch: Batch) -> Batch:
        return batch if self.layout is None else self.layout.change_batch(batch)

    def _move_augmentation(self, device: torch.device) -> None:
        """Its tensors (backgrounds) to where the batches are, once."""
        if device != self._device and isinstance(self.augmentation, nn.Module):
            self.augmentation.to(device)
        self._device = device

    def close(self) -> None:
        """Give back what the augmentation holds beside tensors: a view bank's memory and its process."""
        self.train_loader.close()  # a batch under way may still be augmented
        if self._bank is not None:
            self._bank.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the train loader stands, and what augmentation is a function of beside epoch and sample."""
        return {
            "loader": self.train_loader.state_dict(),
            "augmentation": {"seed": self.seed, "transforms": _describe(self.augmentation)},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue there.

        Raises:
            LoaderStateError: the state is of other data or another augmentation.
        """
        here, saved = self.state_dict()["augmentation"], state_dict["augmentation"]
        for name in here:
            if here[name] != saved[name]:
                raise LoaderStateError(
                    f"the checkpoint has augmentation {name} {saved[name]}, this run {here[name]}: "
                    "use the same settings, or start without --resume"
                )
        self.train_loader.load_state_dict(state_dict["loader"])


def _describe(augmentation: Augment | None) -> str:
    """Its settings; those of an nn.Module stand in its text, of anything else only the class is known."""
    return str(augmentation) if isinstance(augmentation, nn.Module) else type(augmentation).__qualname__


def _bank_of(augmentation: Augment | None) -> BankViews | None:
    """The view bank that an augmentation is, or has among its parts."""
    parts = augmentation.modules() if isinstance(augmentation, nn.Module) else ()
    return next((part for part in parts if isinstance(part, BankViews)), None)


def _is_on(value: Any, device: torch.device) -> bool:
    return isinstance(value, torch.Tensor) and value.device == device
