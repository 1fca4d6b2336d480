"""The `flatout` command: parse, call, print, and turn every outcome into an exit code."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any

import typer

import flatout
from flatout.cli.interruption import Interrupted
from flatout.cli.lazy import LazyGroup, add_stubs
from flatout.cli.output import documents_only, emit_json, emit_text, say_error, warnings_said
from flatout.errors import ConfigError, FlatoutError, ManifestMissingError, RecordMissingError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells count it."""
TERMINATED = 143
"""Exit code after SIGTERM."""


def option_name(name: str) -> str:
    """Options and commands are written with hyphens or underscores alike; values are never touched."""
    return name.replace("_", "-")


app = typer.Typer(
    name="flatout",
    cls=LazyGroup,
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": option_name, "help_option_names": ["--help", "-h"]},
)
add_stubs(app)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train flat out: remove the wait for data from PyTorch training."""
    if version:
        emit_text(f"flatout {flatout.__version__}")
    elif context.invoked_subcommand is None:
        emit_text(context.get_help())
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments` name (absent: the process's) and return the exit code.

    0: fine; 1: the thing checked is bad or the run failed; 2: wrong usage or config, or a manifest or a run
    that is not there; 130: interrupted; 143: terminated, after the same cleaning up.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = typer.main.get_command(app)
    own = _own(arguments)
    is_json = "--json" in own and not {"--help", "-h"} & set(own)
    kept = ""
    try:
        with _terminable() as terminated, warnings_said(), documents_only() if is_json else nullcontext():
            outcome = command.main(args=arguments, prog_name="flatout", standalone_mode=False)
    except Interrupted as error:
        outcome, kept = INTERRUPTED, f": {error}"
    except (FlatoutError, typer.TyperException) as error:
        _report(type(error).__name__, _message(error), is_json=is_json)
        return exit_code(error)
    except PermissionError as error:  # a folder that nobody may look into is met anywhere
        if error.filename is None:
            raise
        way_out = "change its permissions, or run as a user who has them"
        _report("PermissionError", f"{error.filename}: {error.strerror}; {way_out}", is_json=is_json)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        outcome = INTERRUPTED
    if outcome == INTERRUPTED and type(outcome) is int:  # typer turns Ctrl-C into this code itself
        word = "terminated" if terminated.is_set() else "interrupted"
        with _uninterrupted():  # a second Ctrl-C must not take the message away
            _report("Interrupted", word + kept, is_json=is_json)
        return TERMINATED if terminated.is_set() else INTERRUPTED
    return outcome if type(outcome) is int else 0


def _own(arguments: list[str]) -> list[str]:
    """Without those that belong to a script which `doctor` runs."""
    if arguments[:1] != ["doctor"]:
        return arguments
    script = (at for at, given in enumerate(arguments) if given == "-m" or given.endswith(".py"))
    return arguments[: next(script, len(arguments))]


@contextmanager
def _terminable() -> Iterator[threading.Event]:
    """SIGTERM, which schedulers and containers send before they kill, ends a command as Ctrl-C does."""
    terminated = threading.Event()

    def stop(signal_number: int, frame: object) -> None:
        terminated.set()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield terminated
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def exit_code(error: Exception) -> int:
    """2 for what the user wrote wrong, and for a manifest or a run that is not there; 1 for what went wrong."""
    if isinstance(error, typer.TyperException):
        return int(error.exit_code)
    return 2 if isinstance(error, ConfigError | ManifestMissingError | RecordMissingError) else 1


def _report(kind: str, message: str, *, is_json: bool) -> None:
    if is_json:
        emit_json({"error": {"type": kind, "message": message}})
    else:
        say_error(message)


_WORKERS_TRACEBACKS = re.compile(r"\ACaught \w+ in DataLoader worker.*\nflatout\.errors\.\w+: ", re.DOTALL)
"""What torch puts before the message of an error in a worker process: its tracebacks."""


def _message(error: Any) -> str:
    if not isinstance(error, typer.TyperException):
        return _WORKERS_TRACEBACKS.sub("", str(error))
    context = getattr(error, "ctx", None)
    hint = f"\n'{context.command_path} --help' shows what it takes" if context else ""
    return error.format_message() + hint
