"""What the loader relies on in Lightning, point by point, and what Lightning finds in the loader."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.epochs import SEED, WAIT_S, epoch_keys, loader_of, producers

from flatout.loader.loader import FastDataLoader
from flatout.store import StoreReader

lightning = pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH = 8
NUM_BATCHES = 13


class Watched(FastDataLoader):
    """Writes down what is asked of it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.epochs_set: list[int] = []
        self.num_iters = 0
        self.num_exhausted = 0

    def set_epoch(self, epoch: int) -> None:
        self.epochs_set.append(epoch)
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self.num_iters += 1
        return self._watch(super().__iter__())

    def _watch(self, stream: Iterator[Any]) -> Iterator[Any]:
        yield from stream
        self.num_exhausted += 1


class Recorder(lightning.LightningModule):
    """Trains a weight; writes down each batch's keys, and where the loader stands after each step."""

    def __init__(self, loader: FastDataLoader) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.loader = loader
        self.seen: list[list[int]] = []
        self.samples: list[int] = []
        self.threads: list[frozenset[Any]] = []

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        self.seen.append(batch["key"].tolist())
        self.threads.append(frozenset(producers()))
        return (self.weight * batch["image"].mean()).sum()

    def on_train_batch_end(self, *_: Any) -> None:
        self.samples.append(self.loader.state_dict()["samples"])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def watched(store: StoreReader) -> Watched:
    return Watched(store, BATCH, shuffle=True, seed=SEED, num_workers=1)


def trainer(folder: Path, **settings: Any) -> Any:
    return lightning.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 3, "enable_checkpointing": False, **settings},
    )


def batches(store: StoreReader, epoch: int, size: int = BATCH) -> list[list[int]]:
    keys = epoch_keys(store, epoch)
    return [keys[at : at + size] for at in range(0, len(keys), size)]


def test_epochs_states_and_threads_of_a_run(store: StoreReader, tmp_path: Path) -> None:
    loader = watched(store)
    model = Recorder(loader)
    trainer(tmp_path).fit(model, loader)
    assert model.seen == [keys for epoch in range(3) for keys in batches(store, epoch)]
    assert loader.epochs_set == [0, 1, 2]  # through loader.sampler
    assert loader.num_iters > 3  # one of them for nothing
    assert loader.num_exhausted == 0  # it never asks for the batch after the last
    assert model.samples == [min((at + 1) * BATCH, len(store)) for _ in range(3) for at in range(NUM_BATCHES)]
    loader.close()


def test_the_same_producers_serve_every_epoch(store: StoreReader, tmp_path: Path) -> None:
    """Though no iterator is ever exhausted: the first batches of an epoch are made during the last."""
    before = frozenset(producers())
    loader = loader_of(store, BATCH, num_workers=1)
    model = Recorder(loader)
    trainer(tmp_path).fit(model, loader)
    assert len({threads - before for threads in model.threads}) == 1
    loader.close()


def test_a_limited_epoch_is_the_start_of_its_own_order(store: StoreReader, tmp_path: Path) -> None:
    loader = watched(store)
    model = Recorder(loader)
    trainer(tmp_path, limit_train_batches=4).fit(model, loader)
    assert model.seen == [keys for epoch in range(3) for keys in batches(store, epoch)[:4]]
    loader.close()


@pytest.mark.parametrize("stop", [5, NUM_BATCHES, 20])
def test_lightnings_own_checkpoint_carries_the_state(store: StoreReader, tmp_path: Path, stop: int) -> None:
    """A loader that is handed over plainly, without a data module that would carry its state."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=stop, save_top_k=-1)
    first = loader_of(store, BATCH, num_workers=1)
    trainer(tmp_path, enable_checkpointing=True, callbacks=[keep]).fit(Recorder(first), first)
    first.close()
    second = loader_of(store, BATCH, num_workers=1)
    model = Recorder(second)
    path = str(tmp_path / f"step={stop}.ckpt")
    trainer(tmp_path).fit(model, second, ckpt_path=path, weights_only=True)
    second.close()
    assert model.seen == [keys for epoch in range(3) for keys in batches(store, epoch)][stop:]


def test_two_train_loaders_at_once(store: StoreReader, tmp_path: Path) -> None:
    """Lightning begins the shorter one anew when it ends: that is its next epoch."""

    class Paired(Recorder):
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.seen.append([*batch["one"]["key"].tolist(), *batch["two"]["key"].tolist()])
            return (self.weight * batch["one"]["image"].mean()).sum()

    one, two = loader_of(store, BATCH, num_workers=1), loader_of(store, 2 * BATCH, num_workers=1)
    model = Paired(one)
    trainer(tmp_path, max_epochs=1).fit(model, {"one": one, "two": two})
    wide = [*batches(store, 0, 2 * BATCH), *batches(store, 1, 2 * BATCH)]
    assert model.seen == [first + second for first, second in zip(batches(store, 0), wide, strict=False)]
    one.close()
    two.close()


SCRIPT = """
import json, sys
import lightning, torch
from flatout.loader.loader import FastDataLoader

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append([self.current_epoch, index, batch["key"][batch["valid"]].tolist()])
        return (self.weight * batch["image"].mean()).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loader = FastDataLoader(sys.argv[1], 4, shuffle=True, seed=5, num_workers=1)
model = Model()
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[2],
)
trainer.fit(model, loader)
json.dump(model.seen, open(f"{sys.argv[2]}/rank{trainer.global_rank}.json", "w"))
"""


@pytest.mark.slow
def test_two_processes_share_every_epoch(store: StoreReader, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    subprocess.run(
        [sys.executable, str(script), str(store.folder), str(tmp_path)], check=True, timeout=4 * WAIT_S
    )
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        steps = zip(*([keys for e, _, keys in rank if e == epoch] for rank in ranks), strict=True)
        assert [key for step in steps for keys in step for key in keys] == epoch_keys(store, epoch)


def test_lightning_still_drops_the_state_in_the_known_case(store: StoreReader, tmp_path: Path) -> None:
    """Why docs/loader.md advises a data module (tested in test_lightning.py); if this fails, it need not."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    class ReadsSteps(Recorder):
        def configure_optimizers(self) -> Any:
            assert self.trainer.estimated_stepping_batches > 0
            return super().configure_optimizers()

    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=5, save_top_k=-1)
    first = loader_of(store, BATCH, num_workers=1)
    trainer(tmp_path, enable_checkpointing=True, callbacks=[keep]).fit(ReadsSteps(first), first)
    first.close()
    second = loader_of(store, BATCH, num_workers=1)
    model = ReadsSteps(second)
    trainer(tmp_path).fit(model, second, ckpt_path=str(tmp_path / "step=5.ckpt"), weights_only=True)
    second.close()
    assert model.seen[0] == batches(store, 0)[0]  # begins the epoch again, in silence
