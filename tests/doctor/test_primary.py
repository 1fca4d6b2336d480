"""Whose batches count as steps: of a warm-up and a training, of loaders in turns, of none at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doctor import scripts
from tests.doctor.running import run
from torch.utils.data import DataLoader

from flatout.doctor.child.loaders import SeenLoader
from flatout.doctor.child.primary import ABSENT_FOR, MAX_ANEW, Primary
from flatout.doctor.steps.trace import Trace


def seen_loader(number: int, *, is_train: bool = True) -> SeenLoader:
    numbers: Any = [1, 2, 3]
    seen = SeenLoader(number, DataLoader(numbers), "train.py", number)
    for _ in range(5):
        seen.hand_out(None, True)
        if is_train:
            seen.note_backward()
    return seen


def elections(primary: Primary, *asked: SeenLoader, is_open: bool = True) -> list[int]:
    """The numbers of those that were elected, one after the other."""
    return [seen.number for seen in asked if primary.is_elected(seen, is_open=is_open)]


def test_another_loader_takes_the_place_of_one_that_is_not_asked_any_more() -> None:
    first, second = seen_loader(1), seen_loader(2)
    primary = Primary()
    assert elections(primary, first, first, *[second] * (ABSENT_FOR - 1)) == [1]
    assert elections(primary, second) == [2]
    assert primary.loader is second


def test_loaders_in_turns_keep_the_first() -> None:
    labelled, unlabelled = seen_loader(1), seen_loader(2)
    turns = [labelled, *[unlabelled] * (ABSENT_FOR - 1)] * 20
    assert elections(Primary(), *turns) == [1]


def test_evaluations_and_a_plan_change_nothing() -> None:
    first, second, evaluated = seen_loader(1), seen_loader(2), seen_loader(3, is_train=False)
    primary = Primary()
    assert elections(primary, first, *[evaluated] * 100) == [1]
    assert elections(primary, *[second] * 100, is_open=False) == []


def test_who_goes_on_changing_loaders_is_counted_on() -> None:
    loaders, primary, anew = [seen_loader(1), seen_loader(2)], Primary(), []
    for epoch in range(6):
        assert len(elections(primary, *[loaders[epoch % 2]] * (2 * ABSENT_FOR))) == 1
        anew.append(primary.counts_anew)
    assert anew == [True] * MAX_ANEW + [False] * (6 - MAX_ANEW)


def test_the_steps_of_a_record_are_those_that_were_counted() -> None:
    loaders: list[dict[str, Any]] = [
        {"number": 0, "is_train": True, "num_batches": 500},
        {"number": 1, "is_train": True, "num_batches": 30},
    ]
    assert Trace(1, loaders=loaders).train_number == 0
    loaders[1]["is_primary"] = True
    assert Trace(1, loaders=loaders).train_number == 1


PHASES = (
    scripts.HEAD
    + """
warm = DataLoader(Slow(64, 0.0), batch_size=16)
for epoch in range(int(sys.argv[1])):
    for batch in warm:
        train_step(batch)
for batch in DataLoader(Slow(2000, 0.0), batch_size=4):
    train_step(batch)
open("done", "w").close()
"""
)


@pytest.mark.parametrize("num_epochs", ["2", "4"])
def test_a_training_after_a_short_warm_up_is_stopped(tmp_path: Path, num_epochs: str) -> None:
    record = run(tmp_path, PHASES, num_epochs)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert not (tmp_path / "done").exists()
    assert {step.num_samples for step in record.steps} == {4}
    assert 20 <= len(record.steps) < 60
    assert record.loaders[0].batch_size == 4


MADE_BEFORE = (
    scripts.HEAD
    + """
warm, train = DataLoader(Slow(64, 0.0), batch_size=4), DataLoader(Slow(2000, 0.0), batch_size=8)
for epoch in range(int(sys.argv[1])):
    for batch in warm:
        train_step(batch)
for batch in train:
    train_step(batch)
open("done", "w").close()
"""
)


def test_two_epochs_of_warm_up_are_not_the_training(tmp_path: Path) -> None:
    """They are 32 steps, more than were wanted; a larger loader was made and waits."""
    record = run(tmp_path, MADE_BEFORE, "2")
    assert {step.num_samples for step in record.steps} == {8}
    assert record.exit.was_stopped
    assert not (tmp_path / "done").exists()


def test_a_warm_up_without_end_is_looked_at_and_told(tmp_path: Path) -> None:
    record = run(tmp_path, MADE_BEFORE, "50")
    assert {step.num_samples for step in record.steps} == {4}
    assert record.exit.was_stopped
    assert any("one with 2,000 was made and not read from yet" in warning for warning in record.warnings)


TURNS = (
    scripts.HEAD
    + """
def again(loader):
    while True:
        yield from loader


labelled, unlabelled = DataLoader(Slow(64, 0.0), batch_size=4), DataLoader(Slow(64, 0.0), batch_size=16)
for (x, y), (other, _) in zip(again(labelled), again(unlabelled)):
    optimiser.zero_grad()
    (loss_of(model(x), y) + model(other).square().mean()).backward()
    optimiser.step()
"""
)


def test_labelled_and_unlabelled_batches_in_turns(tmp_path: Path) -> None:
    record = run(tmp_path, TURNS)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert {step.num_samples for step in record.steps} == {4}
    assert len(record.steps) in (20, 21)


TRAINER = (
    scripts.HEAD
    + """
class Trainer:
    def __init__(self, model, dataset, num_epochs, accumulate=2):
        self.model, self.num_epochs, self.accumulate = model, num_epochs, accumulate
        self.loader = DataLoader(dataset, batch_size=4, collate_fn=self.collate)
        self.optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.callbacks = [lambda state: state.update(seen=state["step"])]

    @staticmethod
    def collate(items):
        return {"inputs": torch.stack([x for x, _ in items]), "labels": torch.tensor([y for _, y in items])}

    def training_step(self, inputs):
        self.model.train()
        loss = loss_of(self.model(inputs["inputs"]), inputs["labels"]) / self.accumulate
        loss.backward()
        return loss.detach()

    def train(self):
        state, total = {"step": 0}, torch.tensor(0.0)
        for epoch in range(self.num_epochs):
            batches = iter(self.loader)
            left = len(self.loader)
            while left:
                group = [next(batches) for _ in range(min(self.accumulate, left))]
                left -= len(group)
                for inputs in group:
                    total += self.training_step(inputs)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimiser.step()
                self.optimiser.zero_grad()
                state["step"] += 1
                for callback in self.callbacks:
                    callback(state)
                if state["step"] % 5 == 0:
                    print({"loss": total.item() / state["step"]})


Trainer(model, Slow(400, 0.0005), 100, int(sys.argv[1])).train()
open("done", "w").close()
"""
)


@pytest.mark.parametrize("accumulate", ["1", "4"])
def test_a_loop_in_a_trainer(tmp_path: Path, accumulate: str) -> None:
    """It asks for all batches of a step first, then trains on them one by one, as Hugging Face's does."""
    record = run(tmp_path, TRAINER, accumulate)
    assert (record.exit.code, record.exit.was_stopped) == (0, True)
    assert not (tmp_path / "done").exists()
    assert len(record.steps) >= 20
    assert all(step.seconds["wait"] >= 4 * 0.0005 for step in record.steps)
    trained = [step.seconds["backward"] > 0 for step in record.steps]
    assert sum(trained) == pytest.approx(len(trained) / int(accumulate), abs=1)


READ_BEFORE = (
    scripts.HEAD
    + """
batches = list(DataLoader(Slow(64, 0.0), batch_size=8))
for epoch in range(100):
    for batch in batches:
        train_step(batch)
open("done", "w").close()
"""
)
NO_LOADER = (
    scripts.HEAD
    + """
for step in range(800):
    train_step((torch.rand(8, 64), torch.arange(8)))
open("done", "w").close()
"""
)


@pytest.mark.parametrize(
    ("text", "told"), [(READ_BEFORE, "had read before"), (NO_LOADER, "no batch of a torch")]
)
def test_who_trains_on_no_loader_is_told_soon(tmp_path: Path, text: str, told: str) -> None:
    record = run(tmp_path, text)
    assert (record.exit.code, record.exit.was_stopped, record.exit.error) == (0, True, None)
    assert not (tmp_path / "done").exists()
    assert told in record.warnings[0]
    assert record.steps == ()


def test_batches_that_come_together_and_are_trained_on_one_by_one() -> None:
    seen = seen_loader(1, is_train=False)
    for _ in range(4):
        for _ in range(8):
            seen.hand_out(None, True)
        for _ in range(8):
            seen.note_backward()
        seen.count_group()
    assert seen.num_followed == 4 * 8
    assert seen.is_train


@pytest.mark.parametrize("what_comes", ["the epoch ends", "one backward for all"])
def test_batches_that_come_together_and_are_not(what_comes: str) -> None:
    seen = seen_loader(1, is_train=False)
    for _ in range(4):
        for _ in range(8):
            seen.hand_out(None, True)
        if what_comes == "the epoch ends":
            seen.drop_group()
            seen.is_pending = False
            for _ in range(8):
                seen.note_backward()
        else:
            seen.note_backward()
        seen.count_group()
    assert not seen.is_train
