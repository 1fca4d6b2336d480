"""What a training is to predict, read off the data before the first batch: how many classes, what range."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from flatout.errors import ConfigError
from flatout.train import TaskData
from flatout.types import Array

SPARSE = 16
"""Class numbers may leave gaps; so many more than there are classes, they are no class numbers."""

_log = logging.getLogger(__name__)


def count_classes(data: TaskData, name: str) -> int:
    """The number of classes of a label, over all splits.

    Raises:
        ConfigError: the train split has fewer than two, or the numbers are no class numbers.
    """
    found = {split: np.unique(np.asarray(data.values(name, split))) for split in data.num_samples}
    train = found.get("train", np.empty(0, np.int64))
    names = data.fields[name].classes
    if len(train) < 2:
        only = f"only class {_named(train, names)}" if len(train) else "no class"
        raise ConfigError(
            f"label '{name}' has {only} in the train split, and there is nothing to tell apart. Look at its "
            f"column; if the classes stand in other splits, set splits.stratify to it; fields.{name}: null "
            "leaves it out"
        )
    everywhere = np.unique(np.concatenate(list(found.values())))
    _check_numbers(name, everywhere)
    for split, classes in found.items():
        if len(unseen := np.setdiff1d(classes, train)):
            told = f"label '{name}': split '{split}' has classes that train lacks"
            _log.warning("%s: %s. They cannot be learned", told, _named(unseen, names))
    return len(names) if names else int(everywhere[-1]) + 1


def scale_of(data: TaskData, name: str) -> tuple[float, float]:
    """Mean and deviation of a number over the train split; samples without one (NaN) do not count.

    Raises:
        ConfigError: it is the same everywhere, or there is none.
    """
    values = np.asarray(data.values(name, "train"), np.float64)
    known = values[np.isfinite(values)]
    deviation = float(known.std()) if len(known) else 0.0
    if deviation == 0.0:
        only = f"the same value, {known[0]:g}, in every sample" if len(known) else "no value in any sample"
        raise ConfigError(
            f"number '{name}' has {only} of the train split, and there is nothing to predict. Look at its "
            f"column; fields.{name}: null leaves it out"
        )
    return float(known.mean()), deviation


def _check_numbers(name: str, classes: Array) -> None:
    if classes[0] < 0:
        raise ConfigError(
            f"label '{name}' has the class number {classes[0]}; wanted 0 and up. Rows without a label are left "
            f"out where the cell is empty; fields.{name}.classes gives other values their numbers"
        )
    if classes[-1] >= len(classes) + SPARSE and classes[-1] >= 2 * len(classes):
        raise ConfigError(
            f"label '{name}' has {len(classes)} different numbers, up to {classes[-1]:,}: these are no class "
            f"numbers. List them in fields.{name}.classes; or it is a number: fields.{name}.kind: scalar"
        )


def _named(numbers: Array, names: Sequence[str] | None) -> str:
    listed: list[Any] = numbers.tolist()
    return ", ".join(str(number) if names is None else f"'{names[number]}'" for number in listed[:8])
