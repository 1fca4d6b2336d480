"""`flatout train`: a config in, a trained model out; reads the store where it is up to date."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from flatout.cli import train_options as options
from flatout.cli.interruption import Interrupted
from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json, error_console, say
from flatout.cli.words import seconds_text
from flatout.errors import ConfigError, ReportError
from flatout.train.record import CHECKPOINTS, CONFIG, LAST, config_file_of

if TYPE_CHECKING:
    from flatout.train import RunResult


def train(
    config: ConfigOption = None,
    task: options.Task = None,
    preset: options.Preset = None,
    resume: options.Resume = None,
    output_dir: options.OutputDir = None,
    epochs: options.Epochs = None,
    learning_rate: options.LearningRate = None,
    use_fast_loader: options.UseFastLoader = None,
    preprocessed_data_dir: options.PreprocessedDataDir = None,
    manifest: options.Manifest = None,
    batch_size: options.BatchSize = None,
    num_workers: options.NumWorkers = None,
    prefetch_factor: options.PrefetchFactor = None,
    pin_memory: options.PinMemory = None,
    persistent_workers: options.PersistentWorkers = None,
    use_dynamic_padding: options.UseDynamicPadding = None,
    max_sequence_length: options.MaxSequenceLength = None,
    cache_in_memory: options.CacheInMemory = None,
    use_gpu_augment: options.UseGpuAugment = None,
    mode: options.Mode = None,
    label_set: options.LabelSet = None,
    pretrained: options.Pretrained = None,
    precision: options.Precision = None,
    gradient_accumulation_steps: options.GradientAccumulationSteps = None,
    compile_model: options.CompileModel = None,
    device: options.Device = None,
    devices: options.Devices = None,
    val_check_interval: options.ValCheckInterval = None,
    limit_val_batches: options.LimitValBatches = None,
    save_top_k: options.SaveTopK = None,
    seed: options.Seed = None,
    fast_detection: options.FastDetection = None,
    disable_metrics_monitoring: options.DisableMetricsMonitoring = None,
    dashboard: options.Dashboard = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train. Batches come from the prepared store where it is up to date, otherwise from the raw files.

    Every setting of a config has a name for --set; those below are the most used. Ctrl-C keeps the last
    checkpoint, and --resume goes on from it.
    """
    given = {name: value for name, value in locals().items() if name not in _OWN}
    _refuse_absent(resume)
    _tell_start(config, task, manifest, resume)
    if config is None and task is None and manifest is None:
        config = None if resume is None else config_file_of(resume)  # the run goes on as it was
        if config is None:
            raise _no_config(resume)
    result = _run(config, given, set_ or [], resume, dashboard=dashboard, shows_bar=not as_json)
    if result.rank:  # another process of the same run: the first one prints
        return
    if as_json:
        emit_json(result.to_json())
    else:
        _show(result)


def _refuse_absent(resume: str | None) -> None:
    from flatout.train.fetch import is_address

    if resume is not None and not is_address(resume) and not Path(resume).exists():
        raise ConfigError(
            f"resume: {resume} does not exist: give the folder of a run, one of its checkpoints, or an address"
        )


def _tell_start(config: Path | None, task: str | None, manifest: str | None, resume: str | None) -> None:
    """What is begun: torch and Lightning take some seconds to load, in which nothing else is seen."""
    named = {"config": config, "task": task, "manifest": manifest, "resume": resume}
    told = ", ".join(f"{name} {value}" for name, value in named.items() if value is not None)
    is_first = all(os.environ.get(name, "0") == "0" for name in RANKS)
    if told and is_first:
        error_console().print(f"starting: {told}", markup=False)


def _no_config(resume: str | None) -> ConfigError:
    why = "nothing to train" if resume is None else f"there is no {CONFIG} of a run at {resume}"
    return ConfigError(f"{why}: give --config FILE, or --task with --manifest")


_OWN = {"config", "resume", "dashboard", "set_", "as_json"}
"""Parameters that are no settings."""
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
"""Where launchers, and Lightning where it starts processes itself, say which one of a run this is."""
_NUMBERS = ("batch_size", "devices", "val_check_interval", "limit_val_batches")
"""Settings that mean one thing as a whole number and another as a share."""


def _run(
    config: Path | None,
    given: dict[str, Any],
    sets: list[str],
    resume: str | None,
    *,
    dashboard: bool,
    shows_bar: bool,
) -> RunResult:
    """Train with the options that were given.

    Raises:
        ConfigError: they are wrong, or name no data.
        Interrupted: Ctrl-C.
    """
    from flatout.config import resolve_config

    overrides = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    overrides |= {name: _number(overrides.get(name)) for name in _NUMBERS}
    # What is wrong with it is said before torch is imported, which takes seconds.
    known, _ = resolve_config(config or {}, overrides=overrides, sets=sets)
    if known.manifest is None and known.preprocessed_data_dir is None:
        raise ConfigError(
            "nothing to train on: set 'manifest' (csv_path) or preprocessed_data_dir in the config, or give "
            "--manifest or --preprocessed-data-dir"
        )
    from flatout.train import epoch_line, fit

    folders: list[Path] = []
    try:
        with ExitStack() as pages:

            def on_folder(folder: Path) -> None:
                folders.append(folder)
                if dashboard:
                    _serve(folder, pages)

            return fit(
                config or {},
                overrides=overrides,
                sets=sets,
                resume=resume,
                say=say,
                on_epoch=lambda row: error_console().print(epoch_line(row), markup=False),
                on_folder=on_folder,
                shows_bar=shows_bar and error_console().is_terminal,
            )
    except KeyboardInterrupt as error:
        raise Interrupted(_what_is_kept(folders)) from error


def _what_is_kept(folders: list[Path]) -> str:
    """What a run that was stopped just now has saved, and how it goes on."""
    from flatout.train.checkpoints import LAST_EVERY_S

    kept = [folder for folder in folders if (folder / CHECKPOINTS / LAST).exists()]
    if kept:
        folder = shlex.quote(str(kept[0]))
        command = f"flatout train --resume {folder}"
        return f"the last checkpoint is kept; '{command}' goes on from it"
    return f"no checkpoint yet: one is kept after each epoch, and every {seconds_text(LAST_EVERY_S)} in between"


def _serve(folder: Path, pages: ExitStack) -> None:
    """A page that follows the run until it ends; where it cannot be had the training goes on without."""
    from flatout.report import Dashboard

    try:
        say(f"dashboard: {pages.enter_context(Dashboard(folder)).address}")
    except ReportError as error:
        say(f"no dashboard: {error}")


def _number(text: Any) -> Any:
    """2 is two, 0.5 and 1.0 are shares, 0,1 is a list; other words stay."""
    if isinstance(text, str) and "," in text:
        return [_number(part) for part in text.split(",") if part]
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


def _show(result: RunResult) -> None:
    speed, table = result.speed, Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    console().print(f"run      {result.folder.absolute()}", markup=False)
    table.add_row("data", "the store" if result.is_fast else "raw files")
    for name, value in result.metrics.items():
        table.add_row(name, f"{value:.4g}")
    if speed.samples_per_s is not None and speed.step_ms is not None:
        table.add_row("speed", f"{speed.samples_per_s:,.0f} samples/s, {speed.step_ms:,.1f} ms a step")
        table.add_row("waiting", f"{speed.data_wait_share:.1%} of {seconds_text(speed.train_s)} for data")
    else:
        table.add_row("speed", "not measured: the first step warms up, and there was no other")
    console().print(table)
    if result.best_weights is not None:
        console().print(f"weights  {result.best_weights.absolute()}", markup=False)
