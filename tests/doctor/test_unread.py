"""Loaders that wait: which are larger, told without a question to the script's own code that could harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doctor import scripts
from tests.doctor.running import run
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from flatout.doctor.child.loaders import SeenLoader, key_of, length_of
from flatout.doctor.child.unread import Unread

MANY = 1_000_000
"""Samples: more than those of loaders that other tests may have left behind."""


class Numbers(Dataset[int]):
    """Counts how often its length was asked for."""

    def __init__(self, number: int) -> None:
        self.number, self.num_asked = number, 0

    def __len__(self) -> int:
        self.num_asked += 1
        return self.number

    def __getitem__(self, index: int) -> int:
        return index


class Others(Numbers):
    """Of a class that nobody has asked for a length yet."""


class Unready(Numbers):
    """Has no length before its set-up, and says so by an error of its choice."""

    error: Exception = RuntimeError("call setup() first")

    def __len__(self) -> int:
        raise self.error


def larger(primary: DataLoader[Any], read: tuple[DataLoader[Any], ...] = ()) -> tuple[int, int] | None:
    return Unread().larger(SeenLoader(0, primary, "train.py", 1), {key_of(each) for each in read})


def test_the_largest_that_waits_is_told() -> None:
    primary = DataLoader(Numbers(MANY))
    waiting = [DataLoader(Numbers(number)) for number in (MANY - 1, MANY + 2, MANY + 1)]
    assert larger(primary) == (MANY, MANY + 2)
    assert larger(primary, (waiting[1],)) == (MANY, MANY + 1)
    del waiting
    assert larger(primary) is None


def test_samples_are_those_that_are_drawn() -> None:
    """A tenth of a large dataset is not larger than all of a small one."""
    small, large = Numbers(MANY), Numbers(10 * MANY)
    tenth = range(MANY - 1)
    waiting = [
        DataLoader(large, sampler=SubsetRandomSampler(tenth)),
        DataLoader(large, sampler=WeightedRandomSampler([1.0] * 10, MANY - 1)),
        DataLoader(large, batch_sampler=BatchSampler(RandomSampler(large, num_samples=MANY - 1), 8, False)),
    ]
    assert larger(DataLoader(small)) is None
    assert larger(DataLoader(large, sampler=SubsetRandomSampler(tenth[:-1]))) == (MANY - 2, MANY - 1)
    del waiting


def test_a_dataset_of_another_class_is_not_asked() -> None:
    unasked = Others(2 * MANY)
    waiting = DataLoader(unasked)
    assert larger(DataLoader(Numbers(MANY))) is None
    assert unasked.num_asked == 0
    del waiting


def test_what_waits_is_asked_once() -> None:
    asked = Numbers(2 * MANY)
    waiting, primary = DataLoader(asked), SeenLoader(0, DataLoader(Numbers(MANY)), "train.py", 1)
    unread = Unread()
    assert [unread.larger(primary, set()) for _ in range(5)] == [(MANY, 2 * MANY)] * 5
    assert asked.num_asked == 1
    del waiting


@pytest.mark.parametrize("error", [RuntimeError("no"), AssertionError(), OSError("gone"), KeyError("n")])
def test_whatever_a_dataset_raises_stays_inside(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unready, "error", error)
    waiting = DataLoader(Unready(1))
    primary = DataLoader(Unready(1), batch_sampler=[[0]])
    assert larger(primary) is None
    assert length_of(waiting.dataset) is None
    assert SeenLoader(0, waiting, "train.py", 1).describe()["num_samples"] is None


def not_yet(loader: DataLoader[Any]) -> Any:
    raise RuntimeError("not there yet")


class Lazy(DataLoader[Any]):
    """Cannot say yet what it reads."""

    dataset = property(not_yet, lambda loader, dataset: None)


def test_loaders_that_are_half_made_are_passed_over() -> None:
    half, lazy = DataLoader.__new__(DataLoader), DataLoader(Numbers(1))
    lazy.__class__ = Lazy
    waiting = DataLoader(Numbers(2 * MANY))
    assert larger(DataLoader(Numbers(MANY))) == (MANY, 2 * MANY)
    del half, lazy, waiting


UNREADY = (
    scripts.HEAD
    + """
class Unready(Slow):
    def __len__(self):
        assert hasattr(self, "number"), "call setup() first"
        return self.number


train, test = DataLoader(Unready(64, 0.0), batch_size=4), DataLoader(Unready(64, 0.0), batch_size=4)
del test.dataset.number
for epoch in range(100):
    for batch in train:
        train_step(batch)
open("done", "w").close()
"""
)


def test_a_dataset_that_is_not_ready_does_not_end_the_script(tmp_path: Path) -> None:
    record = run(tmp_path, UNREADY)
    assert (record.exit.code, record.exit.error) == (0, None)
    assert record.exit.was_stopped


def test_what_is_read_in_order_beside_a_shuffled_training_is_for_an_evaluation() -> None:
    in_order = DataLoader(Numbers(2 * MANY))
    assert larger(DataLoader(Numbers(MANY), shuffle=True)) is None
    shuffled = DataLoader(Numbers(3 * MANY), shuffle=True)
    assert larger(DataLoader(Numbers(MANY), shuffle=True)) == (MANY, 3 * MANY)
    assert larger(DataLoader(Numbers(MANY))) == (MANY, 3 * MANY)
    del in_order, shuffled


def test_ranks_that_share_a_set_in_order_evaluate_on_it() -> None:
    """The sampler says whether it shuffles, not its class."""
    shared = Numbers(4 * MANY)
    in_order = DataLoader(shared, sampler=DistributedSampler(shared, 2, 0, shuffle=False))
    assert larger(DataLoader(Numbers(MANY), shuffle=True)) is None
    primary, unread = SeenLoader(0, DataLoader(Numbers(MANY)), "train.py", 1), Unread()
    for _ in range(3):
        primary.begin_epoch()
    assert unread.larger(primary, set()) == (MANY, 2 * MANY)
    assert not unread.is_waited_for(primary, set())
    shuffled = DataLoader(shared, sampler=DistributedSampler(shared, 2, 0))
    assert larger(DataLoader(Numbers(MANY), shuffle=True)) == (MANY, 2 * MANY)
    del in_order, shuffled


TESTED_AT_THE_END = (
    scripts.HEAD
    + """
train = DataLoader(Slow(160, 0.0), batch_size=8, shuffle="shuffled" in sys.argv)
test = DataLoader(Slow(400, 0.0), batch_size=8)
for epoch in range(2):
    for batch in train:
        train_step(batch)
with torch.no_grad():
    for x, y in test:
        model(x)
open("done", "w").close()
"""
)


def test_a_larger_test_set_does_not_keep_a_training_from_being_measured(tmp_path: Path) -> None:
    record = run(tmp_path, TESTED_AT_THE_END, "shuffled")
    assert record.exit.was_stopped
    assert not (tmp_path / "done").exists()
    assert len(record.steps) in (20, 21)
    assert not any("not read from" in warning for warning in record.warnings)


def test_a_training_that_may_have_been_a_warm_up_is_told(tmp_path: Path) -> None:
    """Both are read in order: there were steps enough, and nothing was measured after them."""
    record = run(tmp_path, TESTED_AT_THE_END)
    assert (tmp_path / "done").exists()
    assert len(record.steps) >= 20
    assert any("a loader with 160 samples; one with 400 was made" in warning for warning in record.warnings)
    assert any("before resident batches could be replayed" in warning for warning in record.warnings)


@pytest.mark.parametrize(("shuffles", "is_waited_for"), [(False, [True, True, False]), (True, [True] * 3)])
def test_what_is_read_in_order_is_waited_for_two_epochs(shuffles: bool, is_waited_for: list[bool]) -> None:
    """In the third the larger one, of the same class and in order as well, is rather the test set."""
    waiting = DataLoader(Numbers(MANY + 1), shuffle=shuffles)
    primary, unread = SeenLoader(0, DataLoader(Numbers(MANY)), "train.py", 1), Unread()
    found = []
    for _ in range(3):
        primary.begin_epoch()
        found.append(unread.is_waited_for(primary, set()))
    assert found == is_waited_for
    assert unread.larger(primary, set()) == (MANY, MANY + 1)  # it is told all the same
    del waiting


BEFORE_A_TEST = (
    scripts.HEAD
    + """
train, test = DataLoader(Slow(64, 0.0), batch_size=4), DataLoader(Slow(2000, 0.0), batch_size=8)
for epoch in range(4):
    for batch in train:
        train_step(batch)
with torch.no_grad():
    for x, y in test:
        model(x)
"""
)


def test_a_short_training_before_a_larger_test_set_is_measured(tmp_path: Path) -> None:
    """64 steps, of which 20 are wanted: while they were waited for, the script was at its end."""
    record = run(tmp_path, BEFORE_A_TEST)
    assert record.exit.was_stopped
    assert {step.num_samples for step in record.steps} == {4}
    assert any("one with 2,000 was made and not read from yet" in warning for warning in record.warnings)
