"""Training scripts as people write them, for the doctor to run, as texts."""

from __future__ import annotations

from pathlib import Path

WITHOUT_COMPILER = """
import types

sys.modules["torch._dynamo"] = torch._dynamo = types.SimpleNamespace(
    disable=lambda function, *_, **__: function, graph_break=lambda: None
)
"""
"""The first optimiser imports torch's compiler, a third of a short script's time, and calls these two of it."""

HEAD = f'''
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
{WITHOUT_COMPILER}
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
loss_of = nn.CrossEntropyLoss()


class Slow(Dataset):
    """Waits like a disk, then works like a decoder."""

    def __init__(self, number=256, wait=0.001):
        self.number, self.wait = number, wait

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        time.sleep(self.wait)
        return decode(index), index % 10


def decode(index):
    x = torch.full((64,), float(index))
    for _ in range(20):
        x = torch.sin(x)
    return x


def train_step(batch):
    x, y = batch
    optimiser.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimiser.step()
    return loss
'''

PLAIN = (
    HEAD
    + """
train = DataLoader(Slow(), batch_size=8, shuffle=True)
val = DataLoader(Slow(16, 0.0), batch_size=8)
torch.save(model.state_dict(), "model.pt")
for epoch in range(100):
    for step, batch in enumerate(train):
        loss = train_step(batch)
        total = loss.item()  # the sync point
        if step % 4 == 0:
            print("step", step, round(total, 3))
        if step % 10 == 9:
            with torch.no_grad():
                for x, y in val:
                    model(x)
    torch.save(model.state_dict(), "model.pt")
"""
)

WORKERS = (
    HEAD
    + """
def main():
    context = sys.argv[1] if len(sys.argv) > 1 else "fork"
    train = DataLoader(Slow(), batch_size=8, num_workers=2, multiprocessing_context=context)
    while True:
        for batch in train:
            train_step(batch)


if __name__ == "__main__":
    assert __file__.endswith("script.py")
    assert sys.path[0] == os.path.dirname(os.path.abspath(__file__))
    main()
"""
)

STREAM = (
    HEAD
    + """
class Endless(IterableDataset):
    def __iter__(self):
        index = 0
        while True:
            time.sleep(0.002)
            yield decode(index), index % 10
            index += 1


for batch in DataLoader(Endless(), batch_size=4):
    try:
        train_step(batch)
    except Exception:
        pass
raise AssertionError("never reached")
"""
)

CRASH = (
    HEAD
    + """
class Broken(Slow):
    def __getitem__(self, index):
        if index == 100:
            raise ValueError("sample 100 is broken")
        return super().__getitem__(index)


for batch in DataLoader(Broken(wait=0.0), batch_size=8, num_workers=int(sys.argv[1])):
    train_step(batch)
"""
)

SHORT = (
    HEAD
    + """
results = []
for epoch in range(2):
    for batch in DataLoader(Slow(64, 0.0005), batch_size=8):
        results.append(train_step(batch).item())
print("last loss", results[-1], len(results))
"""
)

THREAD = (
    HEAD
    + """
import threading


def work():
    for epoch in range(100):
        for batch in DataLoader(Slow(), batch_size=8):
            train_step(batch)


thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
)

LIGHTNING = """
import time
import torch
from torch.utils.data import DataLoader, Dataset
import lightning.pytorch as pl


class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((8,), float(index)), index % 2


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layer(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), DataLoader(Slow(), batch_size=4))
    raise AssertionError("never reached")
"""

RANKS = (
    HEAD.replace(WITHOUT_COMPILER, "")
    + """
import torch.distributed as dist
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
dataset = Slow(512, 0.0005)
train = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
for epoch in range(100):
    for batch in train:
        train_step(batch)
"""
)

ACCELERATE = (
    HEAD.replace(WITHOUT_COMPILER, "")
    + """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
train = DataLoader(Slow(), batch_size=8)
model, optimiser, train = accelerator.prepare(model, optimiser, train)
for epoch in range(100):
    for x, y in train:
        optimiser.zero_grad()
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        optimiser.step()
"""
)


def write(folder: Path, text: str) -> Path:
    """The text as `script.py` in a folder."""
    path = folder / "script.py"
    path.write_text(text)
    return path
