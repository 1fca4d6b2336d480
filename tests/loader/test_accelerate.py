"""FastDataLoader under the real Accelerate: `prepare` passes it through, its checkpoints carry the state."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.epochs import WAIT_S, epoch_keys, keys_of, loader_of

from flatout.store import StoreReader

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def accelerator() -> Iterator[Any]:
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(True)


def test_prepare_passes_it_through(store: StoreReader, accelerator: Any) -> None:
    model = torch.nn.Linear(16, 1)
    loader = loader_of(store, num_workers=1)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()), loader)
    assert prepared is loader
    for epoch in range(3):
        seen = []
        for batch in prepared:
            with accelerator.accumulate(model):
                loss = model(batch["image"]).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            seen.append(batch)
        assert keys_of(seen) == epoch_keys(store, epoch)
    loader.close()


@pytest.mark.parametrize("stop", [1, 5, 13])
def test_a_checkpoint_carries_its_state(
    store: StoreReader, accelerator: Any, tmp_path: Path, stop: int
) -> None:
    first = loader_of(store, num_workers=1)
    accelerator.register_for_checkpointing(first)
    stream = iter(first)
    seen = keys_of(next(stream) for _ in range(stop))
    accelerator.save_state(str(tmp_path))
    del stream
    first.close()
    accelerate.state.AcceleratorState._reset_state(True)
    resumed = accelerate.Accelerator(cpu=True)
    second = loader_of(store, num_workers=1)
    resumed.register_for_checkpointing(second)
    resumed.load_state(str(tmp_path))
    wanted = epoch_keys(store, 0)[len(seen) :] or epoch_keys(store, 1)
    assert keys_of(second) == wanted
    second.close()


SCRIPT = """
import json, sys
import accelerate
from flatout.loader.loader import FastDataLoader
accelerator = accelerate.Accelerator(cpu=True)
loader = accelerator.prepare(FastDataLoader(sys.argv[1], 4, shuffle=True, seed=5, num_workers=1))
seen = []
for batch in loader:
    valid = accelerator.gather(batch["valid"])
    seen.append(accelerator.gather(batch["key"])[valid].tolist())
if accelerator.is_main_process:
    json.dump(seen, open(sys.argv[2], "w"))
accelerator.end_training()
"""


@pytest.mark.slow
def test_two_processes_share_an_epoch(store: StoreReader, tmp_path: Path) -> None:
    script, out = tmp_path / "script.py", tmp_path / "seen.json"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    subprocess.run([*command, str(script), str(store.folder), str(out)], check=True, timeout=4 * WAIT_S)
    assert [key for step in json.loads(out.read_text()) for key in step] == epoch_keys(store, 0)
