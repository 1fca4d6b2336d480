"""`flatout tune`: a config in, the loader settings that are fastest here and the proof of it out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flatout.cli.interruption import Interrupted
from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json, say
from flatout.cli.words import seconds_text
from flatout.errors import ConfigError

if TYPE_CHECKING:
    from flatout.doctor.tune.race import Entry
    from flatout.doctor.tune.run import Tuned
    from flatout.doctor.tune.setting import Setting

DEFAULT_OUTPUT = "tuned.yaml"


def tune(
    config: ConfigOption = None,
    budget: Annotated[str, typer.Option(metavar="TIME", help="Time for the search: 60s, 2m.")] = "60s",
    cpu_budget: Annotated[float, typer.Option(help="Share of the cores that workers may keep busy.")] = 0.8,
    memory_budget: Annotated[float, typer.Option(help="Share of the free memory that a trial may take.")] = 0.8,
    allow: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="What may be tried although it changes results: batch_size,encoding,order."
        ),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The tuned config; default: tuned.yaml.")
    ] = None,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the loader settings of a training that are fastest on this machine, by measuring them.

    Tried are workers, batches ahead and caches, which leave the results of a training as they are; with --allow
    also batch size, encoding and order, which change only where that is faster beyond noise. Written are the
    tuned config and every trial as its proof. Ctrl-C keeps the best so far.
    """
    if config is None:
        raise ConfigError("nothing to tune: give --config FILE")
    from flatout.doctor.tune.options import TuneOptions, parse_seconds
    from flatout.doctor.tune.run import tune as find
    from flatout.doctor.tune.write import check_output, write_tuned

    names = frozenset(name.strip().replace("-", "_") for name in allow.split(",") if name.strip())
    options = TuneOptions(parse_seconds(budget), cpu_budget, memory_budget, names)
    path = output or Path(DEFAULT_OUTPUT)
    check_output(path, config)
    try:
        tuned = find(config, sets=set_ or (), options=options, say=say)
    except KeyboardInterrupt as error:
        raise Interrupted("nothing was measured yet, and nothing is written") from error
    path, proof = write_tuned(tuned, config, path, set_ or ())
    if as_json and tuned.found.is_complete:
        emit_json({**tuned.to_json(), "config": str(path), "proof": str(proof)})
    elif not as_json:
        _show(tuned, path, proof)
    if not tuned.found.is_complete:
        raise Interrupted(f"the best so far is in {path}, what was measured in {proof}")


def _show(tuned: Tuned, path: Path, proof: Path) -> None:
    console().print(_table(tuned))
    gain = tuned.found.gain
    if not tuned.keys:
        console().print("the settings as they are stay: nothing measured is better beyond noise", markup=False)
    elif gain is not None:
        is_sure = gain.low > 0  # of a single round nothing is
        sure = f" (95 % between {gain.low:.2f} and {gain.high:.2f})" if is_sure else " (once: not sure)"
        console().print(f"{gain.middle:.2f} times as fast as before{sure}", markup=False)
        if gain.middle < 1:
            over = f"what is faster is over --cpu-budget {tuned.options.cpu_budget:g}; 1 allows everything"
            console().print(over, markup=False)
    for name, value in tuned.keys.items():
        console().print(f"  {name}: {value}", markup=False)
    for name in tuned.changes_results:
        console().print(f"{name} changes results: it is another training", style="yellow", markup=False)
    for name, reason in tuned.not_tried.items():
        console().print(f"not tried: {name}: {reason}", markup=False)
    same = "" if tuned.keys else " (the settings as they were)"
    console().print(f"config   {path.absolute()}{same}", markup=False)
    console().print(f"proof    {proof.absolute()} ({seconds_text(tuned.seconds)})", markup=False)
    if "encoding" in tuned.changes_results:
        console().print(f"next     flatout prepare --config {path}", markup=False)


def _table(tuned: Tuned) -> Table:
    what = "loading alone" if tuned.facts.consumer == "nothing" else "loading and the training step"
    table = Table(title=f"trials: {what}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("tried for", "workers x ahead"):
        table.add_column(name, no_wrap=True)
    for name in ("samples/s", "95 %", "CPU", "memory", "rounds"):
        table.add_column(name, justify="right", no_wrap=True)
    for stage in tuned.found.stages:
        for entry in stage.entries:
            is_taken = entry.setting == stage.taken
            words = _setting_words(entry.setting, tuned.start)
            table.add_row(stage.name, words, *_cells(entry), style="bold" if is_taken else None)
    return table


def _setting_words(setting: Setting, start: Setting) -> str:
    """Workers and batches ahead, and whatever else is not as it was."""
    num_workers = setting.num_workers
    words = [f"{num_workers} x {setting.prefetch_factor}" if num_workers else "0"]
    words += [f"batch {setting.batch_size}"] if setting.batch_size != start.batch_size else []
    for name in ("cache", "order", "encoding"):
        value = getattr(setting, name)
        words += [value] if value != getattr(start, name) else []
    return ", ".join(words)


def _cells(entry: Entry) -> list[str]:
    if not entry.slices:
        return [entry.failure or "not measured", "", "", "", "0"]
    spread, num_rounds = entry.spread, len(entry.slices)
    half = (spread.high - spread.low) / 2 / entry.rate
    sure = f"± {half:.0%}" if num_rounds > 2 else ""
    memory = f"{entry.memory_bytes / 1e6:,.0f} MB"
    return [f"{entry.rate:,.0f}", sure, f"{entry.cpu_share:.0%}", memory, str(num_rounds)]
