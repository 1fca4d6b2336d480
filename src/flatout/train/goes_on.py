"""Whether a run can go on from a checkpoint: asked before data are opened, and before anything is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parameter import is_lazy

from flatout.config import Config
from flatout.config.text import read_file
from flatout.errors import TrainError
from flatout.train.data import RunData
from flatout.train.record import RECORD, config_file_of
from flatout.train.weights import read_checkpoint

TRAINING = ("task", "mode")
"""Settings that make a run another training, whatever its weights are."""
MODEL = ("label_set", "model", "fields")
"""Settings that the shapes of weights may follow from."""
LATER = ("on_load_checkpoint", "load_state_dict", "setup", "configure_model")
"""Hooks by which a module may rename what is loaded, or make its weights only after this is asked."""


def refuse_finished(resume: str | Path, checkpoint: str, continued: Path | None, epochs: int) -> None:
    """Leave a run alone that has nothing left to do: its record would be written over with nothing measured.

    One that was killed after its last epoch has: its weights are not written yet.

    Args:
        resume: what messages call it.
        checkpoint: its file here, which knows the epochs of a run that was killed before it recorded them.
        continued: the folder, where the run itself goes on.
        epochs: how many are asked for.

    Raises:
        TrainError: it is finished, or has had more epochs than that.
    """
    finished = 0 if continued is None else _num_finished(continued)
    num_done = max(finished, _num_epochs(read_checkpoint(checkpoint, resume)))
    more = f"more of them (--epochs {2 * num_done}) go on from there"
    if num_done > epochs:
        raise TrainError(f"resume: {resume} has had {num_done} epochs, and {epochs} are asked for; {more}")
    if finished >= epochs:
        raise TrainError(f"resume: the run in {resume} has had all of its {num_done} epochs; {more}")


def refuse_other_training(resume: str | Path, config: Config) -> None:
    """A run goes on as the task, and in the mode, that it was.

    Raises:
        TrainError: the config has others.
    """
    if told := list(_differences(resume, config, TRAINING)):
        raise _refused(resume, f"is of another training: {'; '.join(told)}")


def refuse_other_model(
    resume: str | Path,
    checkpoint: str,
    config: Config,
    module: LightningModule,
    data: RunData,
    *,
    is_alone: bool,
) -> None:
    """Weights, samples and augmentation of a checkpoint are those of this run.

    Args:
        resume: what messages call it.
        checkpoint: its file here.
        is_alone: one process trains. What several read is known once they are connected: their data are asked
            by Lightning alone.

    Raises:
        TrainError: the weights are of another model.
        LoaderStateError: the data or the augmentation are others.
    """
    saved = read_checkpoint(checkpoint, resume)
    own = module.state_dict()
    is_plain = all(getattr(type(module), name) is getattr(LightningModule, name) for name in LATER)
    is_settled = is_plain and module.strict_loading and not any(map(is_lazy, own.values()))
    why = _why_other(saved["state_dict"], own) if is_settled else None
    if why is not None:
        told = "; ".join([why, *_differences(resume, config, MODEL)])
        raise _refused(resume, f"is of another model: {told}")
    if is_alone:
        data.load_state_dict(saved["RunData"])


def _num_finished(folder: Path) -> int:
    """The epochs of a run that has come to its end; 0: it has not."""
    try:
        document = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return len(document["epochs"]) if document["status"] == "finished" else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # killed before it wrote one, or written by another version


def _num_epochs(saved: Mapping[str, Any]) -> int:
    """Epochs whose batches are all behind a checkpoint; `completed` does not count the one that it ends."""
    return int(saved["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])


def _refused(resume: str | Path, what: str) -> TrainError:
    found = config_file_of(resume)
    where = f" (--config {found})" if found is not None else ""
    return TrainError(
        f"resume: {resume} {what}. A run goes on with its own settings{where}; without --resume, "
        f"--pretrained {resume} begins a new one with what fits of its weights"
    )


def _why_other(saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str | None:
    """The first difference between two sets of weights."""
    for name, value in own.items():
        if name not in saved:
            return f"it has no weights '{name}'"
        if saved[name].shape != value.shape:
            return f"'{name}' is {tuple(saved[name].shape)} there and {tuple(value.shape)} here"
    surplus = next((name for name in saved if name not in own), None)
    return None if surplus is None else f"its weights '{surplus}' have no place here"


def _differences(resume: str | Path, config: Config, names: tuple[str, ...]) -> Iterator[str]:
    """What is not as the run had it, where its settings are at hand."""
    if (path := config_file_of(resume)) is None:
        return
    try:
        # As it is written: an own task is not imported, whose folder would come before that of the config.
        written = read_file(path).values
        before = Config.model_validate({name: written[name] for name in names if name in written})
    except ValueError:  # somebody's own file, or half of one
        return
    saved, here = (each.model_dump(mode="json", include=set(names)) for each in (before, config))
    yield from _told("", saved, here)


def _told(name: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            yield from _told(f"{name}.{key}" if name else key, before.get(key), now.get(key))
    elif before != now:
        yield f"{name} was {_word(before)}, is {_word(now)} now"


def _word(value: Any) -> str:
    return "not set" if value is None else str(value)
