"""`flatout doctor`: why is this training slow, what would fix it; with --try also the proof."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.options import JsonOption
from flatout.cli.output import emit_json, error_console, say
from flatout.errors import ConfigError
from flatout.units import bytes_text

if TYPE_CHECKING:
    from flatout.doctor.record import DoctorRecord

INTERRUPTED = 130
"""Exit code of a script that Ctrl-C ended, as shells count it."""
STANDARD_ERROR = 2
"""With --json the script prints there: standard output is for the document."""

app = typer.Typer(add_completion=False)


@app.command("doctor", context_settings={"allow_interspersed_args": False})
def doctor(
    command: Annotated[
        list[str],
        typer.Argument(metavar="SCRIPT.py [ARGS]...", help="What you train with, and its own arguments."),
    ],
    is_module: Annotated[
        bool, typer.Option("-m", help="The script is a module, as for python -m: -m package.module [ARGS].")
    ] = False,
    steps: Annotated[int, typer.Option(min=10, help="Training steps to measure.")] = 60,
    full: Annotated[
        bool, typer.Option("--full", help="Let the script run to its end instead of stopping it.")
    ] = False,
    tries: Annotated[
        bool, typer.Option("--try", help="Try what can be tried without changing the script; measure it.")
    ] = False,
    flags: Annotated[
        bool, typer.Option("--flags", help="With --try: also TF32 and cuDNN switches, which change rounding.")
    ] = False,
    time_limit: Annotated[
        float, typer.Option(help="Seconds after which fewer steps have to do.", min=1)
    ] = 120.0,
    report: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="Write a page about it as well.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT.json", help="Write the record to a file as well."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a training script under observation and say what holds it up.

    The script is not changed. After enough steps some more run with batches from memory, then it is stopped:
    what it would still have written is not written. What it writes until then, it writes as always; files of
    those last steps are named, they hold no results.
    """
    if tries and full:
        raise ConfigError("--try stops the script when it has tried everything; leave --full out")
    if flags and not tries:
        raise ConfigError("--flags says what --try may try as well; give --try, too")
    for name, place in (("--report", report), ("--output", output)):
        _check_place(name, place)
    if misplaced := _own_options(command[1:]):
        say(
            f"{', '.join(misplaced)} behind {command[0]} is the script's; the doctor's options stand in front "
            "of the script"
        )
    record = _observed(command, is_module, steps, full, tries, flags, time_limit, as_json)
    if output is not None:
        _write(record, output)
    if report is not None:
        from flatout.report.write import write_report

        write_report(record, report)
    if as_json:
        emit_json(record.to_json())
    else:
        from flatout.cli.doctor_table import show

        show(record)
    _confirm(report=report, record=output)
    if record.exit.code == INTERRUPTED:
        raise SystemExit(INTERRUPTED)  # typer's own Exit would be reported once more, as an error
    if record.exit.code:
        raise typer.Exit(record.exit.code)


def _observed(
    command: list[str],
    is_module: bool,
    steps: int,
    full: bool,
    tries: bool,
    flags: bool,
    time_limit: float,
    as_json: bool,
) -> DoctorRecord:
    from flatout.doctor.observe.settings import ObserveSettings
    from flatout.doctor.trial.observe import observe_and_try

    settings = ObserveSettings(num_steps=steps, is_full=full, tries=tries, time_limit_s=time_limit)
    path, module = (None, command[0]) if is_module else (Path(command[0]), None)
    return observe_and_try(
        path,
        module,
        command[1:],
        settings,
        with_flags=flags,
        stdout=STANDARD_ERROR if as_json else None,
        say=say,
    )


def _own_options(arguments: list[str]) -> list[str]:
    """Those that the doctor would have understood: whoever puts them behind the script means the doctor.

    --steps, --output and --time-limit are left alone: many scripts have them.
    """
    given = [argument.partition("=")[0] for argument in arguments]
    return [name for name in ("--try", "--json", "--report", "--flags", "--full") if name in given]


def _confirm(**written: Path | None) -> None:
    for name, place in written.items():
        if place is not None:
            size = bytes_text(place.stat().st_size)
            error_console().print(f"{name:<8} {place.absolute()} ({size})", markup=False)


def _check_place(name: str, place: Path | None) -> None:
    """Say beforehand what cannot be written: nobody runs a training twice for that."""
    if place is None:
        return
    folder = place.absolute().parent
    if place.is_dir():
        raise ConfigError(f"{name} {place} is a folder; a file was wanted")
    if not folder.exists():
        raise ConfigError(f"{name} {place}: there is no folder {folder}; make it first, the script was not run")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{name} {place}: nothing can be written to {folder}")


def _write(record: DoctorRecord, output: Path) -> None:
    import json

    output.write_text(json.dumps(record.to_json(), indent=2) + "\n", encoding="utf-8")
