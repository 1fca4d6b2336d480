"""FastDataLoader under the real Fabric: used as it is, saved and loaded with the rest, never set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.loader.epochs import epoch_keys, keys_of, loader_of

from flatout.store import StoreReader

fabric_module = pytest.importorskip("lightning.fabric")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def fabric() -> Any:
    made = fabric_module.Fabric(accelerator="cpu", devices=1)
    made.launch()
    return made


def test_it_is_used_as_it_is(store: StoreReader, fabric: Any) -> None:
    model = torch.nn.Linear(16, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters()))
    loader = loader_of(store, num_workers=1, device=fabric.device)
    for epoch in range(3):
        seen = []
        for batch in loader:
            optimizer.zero_grad()
            fabric.backward(model(batch["image"]).mean())
            optimizer.step()
            seen.append(batch)
        assert keys_of(seen) == epoch_keys(store, epoch)
    loader.close()


def test_setup_dataloaders_refuses_it(store: StoreReader, fabric: Any) -> None:
    """Documented: Fabric takes only torch's own class. If this changes, so does docs/loader.md."""
    with pytest.raises(TypeError, match="Only PyTorch DataLoader"):
        fabric.setup_dataloaders(loader_of(store))


@pytest.mark.parametrize("stop", [1, 5, 13])
def test_a_checkpoint_carries_its_state(store: StoreReader, fabric: Any, tmp_path: Path, stop: int) -> None:
    first = loader_of(store, num_workers=1)
    stream = iter(first)
    seen = keys_of(next(stream) for _ in range(stop))
    fabric.save(tmp_path / "state.ckpt", {"loader": first})
    del stream
    first.close()
    second = loader_of(store, num_workers=1)
    assert fabric.load(tmp_path / "state.ckpt", {"loader": second}) == {}
    assert keys_of(second) == (epoch_keys(store, 0)[len(seen) :] or epoch_keys(store, 1))
    second.close()
