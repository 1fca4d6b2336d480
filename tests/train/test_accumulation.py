"""Gradients added up over batches of any sizes are those of one large batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from flatout.train import accumulation
from flatout.train.accumulation import ExactAccumulation
from flatout.train.engine import quiet_lightning
from flatout.train.module import mean_of

BATCH = 5


class Line(LightningModule):
    """Writes down the gradient of every step, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64))
        self.gradients: list[Tensor] = []

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        errors = (batch["x"] @ self.weight - batch["y"]).square()
        return mean_of(errors, batch)

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return self.loss(batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        assert self.weight.grad is not None
        self.gradients.append(self.weight.grad.clone())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def samples(num: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(num)
    x = torch.randn(num, 3, generator=generator, dtype=torch.float64)
    return {"x": x, "y": x.sum(1).square(), "key": torch.arange(num)}


def cut(batch: dict[str, Tensor], sizes: list[int]) -> list[dict[str, Tensor]]:
    parts = {name: value.split(sizes) for name, value in batch.items()}
    return [{name: parts[name][at] for name in batch} for at in range(len(sizes))]


class Fixed:
    """Batches as a loader: a list would be taken for several loaders."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(self._batches)


def gradients_of(
    batches: list[dict[str, Tensor]], steps: int, folder: Path, *callbacks: Callback
) -> list[Tensor]:
    module = Line()
    with quiet_lightning():
        Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=list(callbacks),
        ).fit(module, Fixed(batches))
    return module.gradients


def wanted(batches: list[dict[str, Tensor]]) -> Tensor:
    """The gradient of all of them as one batch."""
    module = Line()
    module.loss({name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}).backward()
    assert module.weight.grad is not None
    return module.weight.grad


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9), steps=st.integers(1, 4))
def test_every_step_has_the_gradient_of_the_large_batch(
    sizes: list[int], steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    batches = cut(samples(sum(sizes)), sizes)
    groups = [batches[at : at + steps] for at in range(0, len(batches), steps)]
    found = gradients_of(batches, steps, tmp_path_factory.getbasetemp(), ExactAccumulation(steps, BATCH))
    assert len(found) == len(groups)
    for gradient, group in zip(found, groups, strict=True):
        torch.testing.assert_close(gradient, wanted(group))


def test_samples_that_do_not_count(tmp_path: Path) -> None:
    batches = cut(samples(15), [5, 5, 5])
    for at, batch in enumerate(batches):
        batch["valid"] = torch.arange(5) < 5 - at * 2
    found = gradients_of(batches, 3, tmp_path, ExactAccumulation(3, BATCH, always_masked=True))
    torch.testing.assert_close(found[0], wanted(batches))


def test_a_step_without_a_sample_that_counts(tmp_path: Path) -> None:
    batches = cut(samples(11), [5, 5, 1])
    for batch in batches:
        batch["valid"] = torch.full((len(batch["key"]),), batch is not batches[-1])
    found = gradients_of(batches, 2, tmp_path, ExactAccumulation(2, BATCH, always_masked=True))
    torch.testing.assert_close(found[0], wanted(batches[:2]))
    assert found[1].tolist() == [0.0, 0.0, 0.0]


def test_a_step_without_a_sample_that_counts_on_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "_mean_over_ranks", lambda value, world, device: torch.as_tensor(value))
    trainer: Any = SimpleNamespace(world_size=2, strategy=SimpleNamespace(root_device=torch.device("cpu")))
    module, exact = Line(), ExactAccumulation(1, BATCH)
    batch = {**samples(1), "valid": torch.tensor([False])}
    exact.setup(trainer, module, "fit")
    exact.on_train_batch_start(trainer, module, batch, 0)
    loss = module.loss(batch) / 1
    exact.on_before_backward(trainer, module, loss)
    loss.backward()
    exact.on_before_optimizer_step(trainer, module, torch.optim.SGD(module.parameters(), lr=0.0))
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [0.0, 0.0, 0.0]


def test_why_it_is_needed(tmp_path: Path) -> None:
    """Lightning alone divides by the number of batches, however many there were; if this fails, it need not."""
    batches = cut(samples(17), [5, 5, 5, 2])
    found = gradients_of(batches, 3, tmp_path)
    torch.testing.assert_close(found[0], wanted(batches[:3]))
    torch.testing.assert_close(found[1], wanted(batches[3:]) / 3)


class Twice(LightningModule):
    """Two optimisers, which it steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))

    def optimisers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD([part], lr=0.0) for part in (self.one, self.other)]


def test_a_module_that_steps_by_itself_is_left_alone() -> None:
    """Also on two ranks, where the second optimiser's share of nothing would be without end."""
    trainer: Any = SimpleNamespace(world_size=2, strategy=SimpleNamespace(root_device=torch.device("cpu")))
    module, exact = Twice(), ExactAccumulation(1, BATCH)
    exact.setup(trainer, module, "fit")
    exact.on_train_batch_start(trainer, module, samples(3), 0)
    loss = (module.one.sum() + module.other.sum()) / 1
    exact.on_before_backward(trainer, module, loss)
    assert loss.item() == 4.0
    loss.backward()
    for optimiser in module.optimisers():
        exact.on_before_optimizer_step(trainer, module, optimiser)
    for part in (module.one, module.other):
        assert part.grad is not None
        assert part.grad.tolist() == [1.0, 1.0]
    assert exact.state_dict()["total"] == 0.0


def test_what_was_added_up_in_other_units() -> None:
    """A run that goes on with batches of twice the size has half as many of them behind it."""
    first, second = ExactAccumulation(2, 4), ExactAccumulation(4, 8)
    first.load_state_dict({"total": 1.0, "is_uneven": False})  # as states were before they had units
    assert first.state_dict()["total"] == 1.0
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["total"] == 0.5
    module, trainer = Line(), Trainer.__new__(Trainer)
    second.on_load_checkpoint(
        trainer, module, {"flatout_gradients": {"weight": torch.full((3,), 8.0).double()}}
    )
    second.on_train_start(trainer, module)
    assert module.weight.grad is not None
    assert module.weight.grad.tolist() == [2.0, 2.0, 2.0]
