"""FastDataLoader under the real Lightning, Accelerate-style and Fabric loops: epochs, state, resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

lightning = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")


class Recorder(lightning.LightningModule):
    """Trains a weight and writes down the keys of every batch."""

    def __init__(self, reads_steps: bool = False) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, list[int]]] = []
        self.reads_steps = reads_steps

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch["key"].tolist()))
        return (self.weight * batch["image"].mean()).sum()

    def configure_optimizers(self) -> Any:
        if self.reads_steps:  # known to make Lightning forget a loader's state on resume
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Data(lightning.LightningDataModule):
    """Carries the loader's state itself: Lightning drops it in known cases."""

    def __init__(self, store: StoreReader) -> None:
        super().__init__()
        self.loader = FastDataLoader(store, 8, shuffle=True, seed=5, num_workers=1)

    def train_dataloader(self) -> FastDataLoader:
        return self.loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


def trainer(folder: Path, **settings: Any) -> Any:
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 3, "enable_checkpointing": False, **settings},
    )


def epochs_of(store: StoreReader, count: int) -> list[list[int]]:
    loader = FastDataLoader(store, 8, shuffle=True, seed=5, num_workers=0)
    return [batch["key"].tolist() for _ in range(count) for batch in loader]


def test_every_epoch_is_another_order_and_whole(store: StoreReader, tmp_path: Path) -> None:
    model, data = Recorder(), Data(store)
    trainer(tmp_path).fit(model, datamodule=data)
    assert [keys for _, keys in model.seen] == epochs_of(store, 3)
    data.loader.close()


@pytest.mark.parametrize("reads_steps", [False, True])
@pytest.mark.parametrize("stop", [5, 13, 20])
def test_a_resumed_run_sees_exactly_the_rest(
    store: StoreReader, tmp_path: Path, reads_steps: bool, stop: int
) -> None:
    """From a checkpoint in the middle of an epoch, at its edge, and in the middle of the next."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=stop, save_top_k=-1)
    first, data = Recorder(reads_steps), Data(store)
    trainer(tmp_path, enable_checkpointing=True, callbacks=[keep]).fit(first, datamodule=data)
    data.loader.close()
    second, again = Recorder(reads_steps), Data(store)
    path = str(tmp_path / f"step={stop}.ckpt")
    trainer(tmp_path).fit(second, datamodule=again, ckpt_path=path, weights_only=True)
    again.loader.close()
    assert [keys for _, keys in first.seen] == epochs_of(store, 3)
    assert [keys for _, keys in second.seen] == epochs_of(store, 3)[stop:]


def test_validation_between_steps_does_not_disturb_training(store: StoreReader, tmp_path: Path) -> None:
    class Validated(Recorder):
        def validation_step(self, batch: dict[str, torch.Tensor], index: int) -> None:
            assert len(batch["key"])

    model, data = Validated(), Data(store)
    val = FastDataLoader(store, 16, num_workers=1)
    trainer(tmp_path, val_check_interval=4, max_epochs=2).fit(model, data.loader, val)
    assert [keys for _, keys in model.seen] == epochs_of(store, 2)
    data.loader.close()
    val.close()
