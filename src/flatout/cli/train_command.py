"""`flatout train`: a config in, a trained model out; reads the store where it is up to date."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from flatout.cli.interruption import Interrupted
from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json, error_console, say
from flatout.cli.words import seconds_text
from flatout.errors import ConfigError, ReportError

if TYPE_CHECKING:
    from flatout.train import RunResult

DATA, TRAINING, MONITORING = "Data", "Training", "Monitoring"


def train(
    config: ConfigOption = None,
    task: Annotated[str | None, typer.Option(help="The training, or package.module:Name of your own.")] = None,
    preset: Annotated[str | None, typer.Option(help="Ready-made settings; see 'flatout presets'.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Run folder or checkpoint to continue from.")
    ] = None,
    output_dir: Annotated[Path | None, typer.Option("--output-dir", "-o", help="Folder of the runs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the train split.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Step size of the optimiser.")] = None,
    use_fast_loader: Annotated[
        bool | None,
        typer.Option(help="Insist on the store, or on raw files; default: the store.", rich_help_panel=DATA),
    ] = None,
    preprocessed_data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the store.", rich_help_panel=DATA)
    ] = None,
    manifest: Annotated[
        str | None, typer.Option(help="Table or folder of samples.", rich_help_panel=DATA)
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(help="Samples a batch and device, or auto.", rich_help_panel=DATA)
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(help="Workers of the loader.", rich_help_panel=DATA)
    ] = None,
    prefetch_factor: Annotated[
        int | None, typer.Option(help="Batches ahead of each.", rich_help_panel=DATA)
    ] = None,
    pin_memory: Annotated[
        bool | None, typer.Option(help="Copy to the GPU from page-locked memory.", rich_help_panel=DATA)
    ] = None,
    persistent_workers: Annotated[
        bool | None, typer.Option(help="Keep worker processes between epochs.", rich_help_panel=DATA)
    ] = None,
    use_dynamic_padding: Annotated[
        bool | None, typer.Option(help="Pad to the longest of a batch.", rich_help_panel=DATA)
    ] = None,
    max_sequence_length: Annotated[
        int | None, typer.Option(help="Steps of a sequence that are kept.", rich_help_panel=DATA)
    ] = None,
    cache_in_memory: Annotated[
        bool | None, typer.Option(help="Read every split into memory first.", rich_help_panel=DATA)
    ] = None,
    use_gpu_augment: Annotated[
        bool | None, typer.Option(help="Augment whole batches on the device.", rich_help_panel=DATA)
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="pretrain, supervised or finetune.", rich_help_panel=TRAINING)
    ] = None,
    label_set: Annotated[
        str | None, typer.Option(help="physionet2016 or circor_murmur.", rich_help_panel=TRAINING)
    ] = None,
    pretrained: Annotated[
        str | None, typer.Option(help="Weights to start from.", rich_help_panel=TRAINING)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, 32, 16-mixed or bf16-mixed.", rich_help_panel=TRAINING)
    ] = None,
    gradient_accumulation_steps: Annotated[
        int | None, typer.Option(help="Batches of one step.", rich_help_panel=TRAINING)
    ] = None,
    compile_model: Annotated[
        bool | None, typer.Option(help="Compile the model first.", rich_help_panel=TRAINING)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, cuda, cuda:1.", rich_help_panel=TRAINING)
    ] = None,
    devices: Annotated[str | None, typer.Option(help="How many, or auto.", rich_help_panel=TRAINING)] = None,
    val_check_interval: Annotated[
        str | None,
        typer.Option(help="Validate after this share, or number of batches.", rich_help_panel=TRAINING),
    ] = None,
    limit_val_batches: Annotated[
        str | None, typer.Option(help="Share, or number, of val batches.", rich_help_panel=TRAINING)
    ] = None,
    save_top_k: Annotated[
        int | None, typer.Option(help="Best checkpoints kept.", rich_help_panel=TRAINING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides order and augmentation.", rich_help_panel=TRAINING)
    ] = None,
    fast_detection: Annotated[
        bool | None, typer.Option(help="Look and draw half as often.", rich_help_panel=MONITORING)
    ] = None,
    disable_metrics_monitoring: Annotated[
        bool | None, typer.Option(help="Never look.", rich_help_panel=MONITORING)
    ] = None,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Meanwhile, a page on this machine.", rich_help_panel=MONITORING),
    ] = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train. Batches come from the prepared store where it is up to date, otherwise from the raw files.

    Every setting of a config has a name for --set; those below are the most used. Ctrl-C keeps the last
    checkpoint, and --resume goes on from it.
    """
    given = {name: value for name, value in locals().items() if name not in _OWN}
    if config is None and task is None and manifest is None:
        raise ConfigError("nothing to train: give --config FILE, or --task with --manifest")
    from flatout.train import epoch_line, fit

    overrides = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    numbers = {name: _number(overrides.get(name)) for name in _NUMBERS}
    shows_bar = error_console().is_terminal and not as_json
    try:
        with ExitStack() as pages:
            result = fit(
                config or {},
                overrides={**overrides, **numbers},
                sets=set_ or (),
                resume=resume,
                say=say,
                on_epoch=lambda row: error_console().print(epoch_line(row), markup=False),
                on_folder=(lambda folder: _serve(folder, pages)) if dashboard else None,
                shows_bar=shows_bar,
            )
    except KeyboardInterrupt as error:
        raise Interrupted("the last checkpoint is kept; --resume RUN goes on from it") from error
    if result.rank:  # another process of the same run: the first one prints
        return
    if as_json:
        emit_json(result.to_json())
    else:
        _show(result)


_OWN = {"config", "resume", "dashboard", "set_", "as_json"}
"""Parameters that are no settings."""
_NUMBERS = ("batch_size", "devices", "val_check_interval", "limit_val_batches")
"""Settings that mean one thing as a whole number and another as a share."""


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
    console().print(table)
    if result.best_weights is not None:
        console().print(f"weights  {result.best_weights.absolute()}", markup=False)
