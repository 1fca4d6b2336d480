"""fit: a config in, a trained model and the record of its run out; Lightning does the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

from flatout.bank import BankViews
from flatout.config import Config, resolve_config
from flatout.config.written import config_text
from flatout.errors import ConfigError
from flatout.loader.create import Source
from flatout.loader.machine import Machine
from flatout.seeding import child_seed
from flatout.train.callbacks import make_callbacks
from flatout.train.checkpoints import open_checkpoint
from flatout.train.convolutions import protect_convolutions
from flatout.train.data import RunData
from flatout.train.device import Place, choose_place, leaves_processor_free
from flatout.train.engine import explained, memory_explained, quiet_lightning
from flatout.train.fetch import is_address
from flatout.train.folder import run_folder
from flatout.train.goes_on import refuse_finished, refuse_other_model, refuse_other_training
from flatout.train.largest_batch import find_batch_size, with_batch_size
from flatout.train.live import LiveRecord
from flatout.train.loaders import RunLoaders, open_loaders
from flatout.train.loggers import check_loggers
from flatout.train.module import TaskModule
from flatout.train.optimiser import fused_note, own_optimiser_note, rate_note
from flatout.train.outcome import Outcome, about
from flatout.train.precision import choose_precision, describe_device
from flatout.train.progress import epoch_line
from flatout.train.rank_errors import forget_errors
from flatout.train.record import CONFIG, RECORD, EpochRow, RunResult
from flatout.train.speed import compile_in_place, fast_kernels, memory_format
from flatout.train.task import Augment, Task, load_task
from flatout.train.trainer import make_trainer
from flatout.train.unread import unread
from flatout.train.watch import Watch
from flatout.train.weights import load_weights

MANY = {"devices", "num_nodes"}
"""Options of a Trainer by which more processes may train than the config says."""

_log = logging.getLogger(__name__)


def fit(
    source: Source,
    *,
    overrides: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    resume: str | Path | None = None,
    say: Callable[[str], None] = _log.info,
    on_epoch: Callable[[EpochRow], None] | None = None,
    on_folder: Callable[[Path], None] | None = None,
    shows_bar: bool = False,
    callbacks: Sequence[Callback] = (),
    trainer_options: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
) -> RunResult:
    """Train what a config describes.

    Batches come from the store at `preprocessed_data_dir` if it is up to date, otherwise from the raw files; a
    note says which. Everything the run leaves is in a new folder below `output_dir`.

    Args:
        source: a Config, a dict, or the path of a config file.
        overrides: settings by dotted name that win over it; None means not given.
        sets: "a.b=c" texts, as `--set` takes them.
        resume: a run folder, which goes on there, or a checkpoint, from which a new run begins: with the same
            samples, parameters and random numbers as without the break.
        say: takes each decision that was made for the user, once; absent: they are logged.
        on_epoch: takes the row of each epoch that is done; absent: it is said.
        on_folder: takes the folder of the run before it begins.
        shows_bar: draw a progress bar.
        callbacks: further callbacks of Lightning.
        trainer_options: further arguments of Lightning's Trainer, which win over the config's.
        machine: what the loaders' decisions rest on; this one by default.

    Raises:
        ConfigError: the config, its task or its devices cannot be used.
        TrainError: a checkpoint cannot be used, memory ran out, or the loss is not finite.
        StoreError, LoaderError, SourceError: the data cannot be read.

    Example:
        >>> result = fit("config.yaml", overrides={"epochs": 5})                    # doctest: +SKIP
        >>> result.metrics["val_loss"], result.speed.data_wait_share                # doctest: +SKIP
    """
    config, notes = resolve_config(source, overrides=overrides, sets=sets)
    check_loggers(config)
    task = load_task(config)
    with open_checkpoint(resume) as (checkpoint, continued):
        if resume is not None and checkpoint is not None:
            if "max_epochs" not in (trainer_options or {}):
                refuse_finished(resume, checkpoint, continued, config.epochs)
            refuse_other_training(resume, config)
        run = Run(config, task, say, on_epoch, shows_bar, on_folder=on_folder)
        run.note(notes)
        run.resumed_from = str(resume) if resume is not None and is_address(resume) else checkpoint
        run.find_batch_size(source, machine)
        with closing(run.open_loaders(source, machine)) as loaders:
            run.note(loaders.notes)
            return run.train(loaders, checkpoint, continued, callbacks, trainer_options or {})


class Run:
    """One training from start to end."""

    def __init__(
        self,
        config: Config,
        task: Task,
        say: Callable[[str], None],
        on_epoch: Callable[[EpochRow], None] | None,
        shows_bar: bool,
        augments_ahead: bool | None = None,
        on_folder: Callable[[Path], None] | None = None,
    ) -> None:
        """`augments_ahead`: batches of a store are moved and augmented while the step before them runs; absent:
        where the training leaves the processor free for it."""
        self.config, self.task = config, task
        self.place: Place = choose_place(config)
        self.notes: list[str] = []
        self.resumed_from: str | None = None
        """The checkpoint, as records and messages name it."""
        self._say, self._shows_bar, self._on_folder = say, shows_bar, on_folder
        self._on_epoch = on_epoch or (lambda row: say(epoch_line(row)))
        free = leaves_processor_free(self.place.device)
        self._is_ahead = free if augments_ahead is None else augments_ahead
        self.note(self.place.notes)
        self.precision, why = choose_precision(
            config.precision, describe_device(self.place.device, config.precision)
        )
        self.note([why, *unread(config, task.name, task.reads)])

    def open_loaders(self, source: Source, machine: Machine | None) -> RunLoaders:
        """The loaders of the config as it is now."""
        with memory_explained(self.config, self.precision, {}):  # nothing is known of the data yet
            return open_loaders(self.config, source, machine)

    def find_batch_size(self, source: Source, machine: Machine | None) -> None:
        """Put the largest batch size that fits in place of `auto`."""
        if not self.config.find_batch_size:
            return
        if self.config.loader_for("train").max_tokens is not None:
            self.config = self.config.model_copy(update={"find_batch_size": False})
            self.note(["batch_size: auto has no effect with max_tokens, which says what a batch holds"])
            return
        loaders = self.open_loaders(source, machine)
        loaders.close()
        num_train = loaders.data.num_samples.get("train", 1)
        size, note = find_batch_size(self.config, num_train, self.place.num_devices)
        self.config = with_batch_size(self.config, size)
        self.note([note])
        if not loaders.is_fast and any(spec.is_ragged for spec in loaders.data.fields.values()):
            self.note(["batch_size: auto was tried on the first samples; only a store knows the longest"])

    def note(self, notes: Sequence[str | None]) -> None:
        """Say what was not said before."""
        for text in notes:
            if text is not None and text not in self.notes:
                self.notes.append(text)
                self._say_first(text)

    @property
    def _is_first(self) -> bool:
        return bool(getattr(rank_zero_only, "rank", 0) == 0)

    def _say_first(self, text: str) -> None:
        """Only the first process of a run speaks."""
        if self._is_first:
            self._say(text)

    def train(
        self,
        loaders: RunLoaders,
        checkpoint: str | None,
        continued: Path | None,
        callbacks: Sequence[Callback],
        options: Mapping[str, Any],
    ) -> RunResult:
        """Build everything, train, write down what came out."""
        if "train" not in loaders.splits:
            raise ConfigError(f"there is no train split; there are: {', '.join(loaders.splits)}")
        config, is_shared = self.config, self.place.num_devices > 1
        with memory_explained(config, self.precision, loaders.data.fields):
            module = self._module(loaders)
            data = self._data(loaders, module)
        if checkpoint is not None:
            assert self.resumed_from is not None
            named = continued or self.resumed_from
            is_alone = not is_shared and not options.keys() & MANY
            refuse_other_model(named, checkpoint, config, module, data, is_alone=is_alone)
        watch = Watch(data.train_loader.waits, None if config.disable_metrics_monitoring else config.monitor)
        with (
            closing(data),
            fast_kernels(config, self.place.device) as notes,
            quiet_lightning(),
            run_folder(config.output_dir, continued=continued, is_shared=is_shared) as folder,
        ):
            if self._is_first:
                forget_errors(folder)
            if continued is None:
                self._write_config(folder)
            live = self._live(folder, watch, loaders)
            own = [*self._callbacks(loaders, folder, watch), live, *callbacks]
            with explained(config, self.precision, loaders.data.fields, self.resumed_from):
                trainer = make_trainer(
                    config, self.place, self.precision, folder, loaders, own, self._shows_bar, options, notes
                )
            self.note([*notes, *self._optimiser_notes(module, trainer)])
            self._say_first(f"run folder: {folder}")
            if self._on_folder is not None and self._is_first:
                self._on_folder(folder)
            outcome = Outcome(
                config,
                self.task.name,
                trainer,
                module,
                data,
                watch,
                folder,
                self.notes,
                self.resumed_from,
                self.note,
            )
            try:
                with explained(config, self.precision, loaders.data.fields, self.resumed_from):
                    with live:
                        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
                    return outcome.finish()
            except BaseException as error:  # also Ctrl-C: what was measured so far is worth keeping
                if continued is None or live.has_begun:  # not over the record of a run that did not go on
                    outcome.fail(error)
                raise

    def _optimiser_notes(self, module: LightningModule, trainer: Trainer) -> list[str | None]:
        if type(module).configure_optimizers is not TaskModule.configure_optimizers:
            return [own_optimiser_note(self.config)]
        return [fused_note(self.config, module, trainer, self.place.device), rate_note(self.config)]

    def _module(self, loaders: RunLoaders) -> LightningModule:
        """The task's module with its weights, compiled; new weights follow from the seed."""
        torch.manual_seed(child_seed(self.config.seed, "model") >> 1)
        module = self.task.module(self.config, loaders.data)
        if self.config.pretrained is not None:
            self.note(load_weights(module, self.config.pretrained))
        protect_convolutions(module, self.precision, self.place.device)
        self.note([compile_in_place(self.config, module, self.place.device)])
        return module

    def _data(self, loaders: RunLoaders, module: LightningModule) -> RunData:
        layout = memory_format(self.config, module, self.precision, self.place.device)
        if layout is not None:
            layout.change_module(module)
        elif self.config.channels_last is True:
            self.note(["channels_last: the model has no convolutions of pictures or volumes; no effect"])
        augmentation, is_ahead = self._augmentation(loaders), self._is_ahead and loaders.is_fast
        return RunData(loaders, augmentation, seed=self.config.seed, layout=layout, is_ahead=is_ahead)

    def _augmentation(self, loaders: RunLoaders) -> Augment | None:
        """Whole batches on the device; on the standard path sample by sample, unless the config says so."""
        if not loaders.is_fast and not self.config.use_gpu_augment:
            transform = self.task.sample_transform(self.config, loaders.data)
            if transform is not None:
                loaders.set_transform(transform, self.config.seed)
                return None
        found = self.task.augmentation(self.config, loaders.data)
        is_denied = not self.config.use_gpu_augment and "use_gpu_augment" in self.config.model_fields_set
        if loaders.is_fast and is_denied and not isinstance(found, BankViews):
            self.note(["use_gpu_augment: false has no effect with a store: its batches are augmented whole"])
        return found

    def _callbacks(self, loaders: RunLoaders, folder: Path, watch: Watch) -> list[Callback]:
        return make_callbacks(
            self.config,
            loaders,
            folder,
            watch,
            on_epoch=self._on_epoch,
            note=lambda text: self.note([text]),
            say=self._say_first,
            shows_bar=self._shows_bar,
        )

    def _live(self, folder: Path, watch: Watch, loaders: RunLoaders) -> LiveRecord:
        facts = {"folder": folder, "task": self.task.name, "notes": self.notes, "is_fast": loaders.is_fast}

        def describe(trainer: Trainer, module: LightningModule) -> dict[str, Any]:
            self._write_config(folder)  # what was resumed is loaded: these settings are the run's from here on
            return {**about(self.config, trainer, module, self.resumed_from), **facts}

        return LiveRecord(folder / RECORD, watch, describe)

    def _write_config(self, folder: Path) -> None:
        if self._is_first:
            # Swapped: a run that is killed, or whose disk is full, keeps the settings it can go on with.
            temporary = folder / f"{CONFIG}.part"
            temporary.write_text(config_text(self.config), encoding="utf-8")
            temporary.replace(folder / CONFIG)
