"""Task: what one kind of training says about itself; everything else is the same for all of them.

A task names its settings (as data), makes a LightningModule, and says how its samples are augmented: whole
batches on the device, and sample by sample for the standard path. Write one in a module of your own and name it
in the config as `task: "package.module:Name"`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from lightning.pytorch import LightningModule
from torch import Tensor

from flatout.config import Config, list_tasks
from flatout.config.own_task import is_own_task, load_named, load_own
from flatout.errors import ConfigError
from flatout.loader.transfer import Augment as Augment
from flatout.loader.transfer import Batch as Batch
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec

Sample = dict[str, Tensor]
"""One sample of the standard path: what a batch has, without the first axis."""
SampleTransform = Callable[[Sample], Sample]
"""Augments one sample in a worker process; it must be picklable, and draws from NumPy's or torch's global
generator, which are seeded for each sample and epoch: a resumed run draws the same."""


@dataclass(frozen=True)
class TaskData:
    """What a task may know of the data before the first batch."""

    fields: Mapping[str, FieldSpec]
    """Dtype, shape and classes of each field; the same on the fast and on the standard path."""
    num_samples: Mapping[str, int] = field(default_factory=dict)
    """Samples of each split that has any."""
    store: StoreReader | None = None
    """The store that is read; None on the standard path."""
    values: Callable[[str, str], Sequence[Array]] = lambda name, split: ()
    """A field and a split in, the value of each of its samples out: labels, numbers and texts (as UTF-8 bytes),
    which are known without decoding files."""
    names: Callable[[Sequence[int]], list[str]] = lambda hashes: [str(number) for number in hashes]
    """`batch["key"]` as whole numbers in, the samples' keys out, for messages."""

    def field_of(self, kind: str) -> FieldSpec:
        """The field of this kind, whatever the user calls it; of several, the one that is called like its kind.

        Raises:
            ConfigError: there is none, or one cannot tell which of several is meant.
        """
        found = {name: spec for name, spec in self.fields.items() if spec.kind == kind}
        if len(found) == 1:
            return next(iter(found.values()))
        if kind in found:
            return found[kind]
        there = ", ".join(f"{name} ({spec.kind})" for name, spec in self.fields.items())
        wanted = f"one of them called '{kind}'" if found else f"a field of kind '{kind}'"
        raise ConfigError(f"the task wants {wanted}; the samples have: {there}. Name it under 'fields'")


class Task(ABC):
    """One kind of training.

    Example:
        >>> class Mine(Task):                                                       # doctest: +SKIP
        ...     name = "mine"
        ...     defaults = {"batch_size": 32, "fields": {"signal": {"kind": "signal", "rate": 2000}}}
        ...     def module(self, config, data): return MyLightningModule(config, data)
    """

    name: ClassVar[str]
    """What messages and run folders call it."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Settings below everything that a preset, a file or an option says, in a config's own names: batch size,
    `fields` with their preprocessing, ... `fields` hold only where a config names neither fields nor a
    transform. Built-in tasks have theirs in config/data/tasks.yaml, where `flatout prepare` finds them without
    torch."""
    before: ClassVar[Mapping[str, Any]] = {}
    """The settings that the task's guide started from: overrides for its standard path, the honest baseline."""
    after: ClassVar[Mapping[str, Any]] = {}
    """The settings that the guide arrived at."""
    reads: ClassVar[Collection[str] | None] = None
    """Which of the settings that only some tasks follow (`model.*`, `augmentation.*`, `mode`, `eval_scales`,
    `kl_annealing`) this one does; the others are said to have no effect. None: nothing is said."""

    @abstractmethod
    def module(self, config: Config, data: TaskData) -> LightningModule:
        """Model, loss, metrics and optimiser. `flatout.train.TaskModule` does all but model and loss.

        A plain LightningModule will do. Its training loss is a mean over the batch's samples (without those
        that `batch["valid"]` rules out), and it logs `val_loss`.
        """

    def augmentation(self, config: Config, data: TaskData) -> Augment | None:
        """How train batches are augmented on the device; None: not at all.

        A batch and its epoch in, a new batch out: `flatout.augment.augment_from_config(config, ...)`, or an
        nn.Module that draws everything from `draw_keys(batch["key"], seed=config.seed, epoch=epoch)`, so that a
        resumed run draws the same. Not from torch's global generators: on CUDA it runs in a thread of its own
        beside the step, which seeds them and draws from them, too.
        """
        return None

    def sample_transform(self, config: Config, data: TaskData) -> SampleTransform | None:
        """How the standard path augments a train sample in its workers; None: not at all.

        It is used with `use_gpu_augment: false`; with true both paths use `augmentation`.
        """
        return None


BUILT_IN = {
    "cardiac_ct": "flatout.tasks.cardiac_ct:CardiacCT",
    "heart_sound": "flatout.tasks.heart_sound:HeartSound",
    "speech": "flatout.tasks.speech:Speech",
    "segmentation": "flatout.tasks.segmentation:Segmentation",
    "sequence_vae": "flatout.tasks.sequence_vae:SequenceVAE",
}
"""Where each task of the config's list is; imported when it is asked for."""


def load_task(config: Config) -> Task:
    """The task that a config names.

    Raises:
        ConfigError: it names none, or one that cannot be imported or is no Task.
    """
    if config.task is None:
        raise ConfigError(
            f"no task: set 'task' (--task) to one of {', '.join(list_tasks())}, or to a class of your own as "
            "'package.module:Name'"
        )
    if is_own_task(config.task):
        found = load_own(config.task, config.config_dir)
    else:  # no folder of the user's: a file there that is called like a library must not be imported for it
        found = load_named(BUILT_IN[config.task])
    if isinstance(found, type) and issubclass(found, Task):
        found = found()
    if not isinstance(found, Task):
        raise ConfigError(f"task '{config.task}' is {found!r}; wanted a subclass of flatout.train.Task")
    return found
