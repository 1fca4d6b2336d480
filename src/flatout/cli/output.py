"""What the command line prints: results to standard output, words about them to standard error."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PREPARE = "flatout.prepare"
"""The log that a store keeps of what was done to it."""
_documents: ContextVar[TextIO | None] = ContextVar("documents", default=None)
"""Where documents go while standard output is closed to everything else."""


@contextmanager
def documents_only() -> Iterator[None]:
    """Send all that is printed to standard error, except what `emit_json` and `emit_text` print.

    A user's transform may print while it is imported, and libraries greet: with --json that must not reach
    whoever parses standard output.
    """
    token = _documents.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _documents.reset(token)


@cache
def console() -> Console:
    """The console of results, on standard output."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


@cache
def error_console() -> Console:
    """The console of errors, notes and progress, on standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def emit_json(document: Any) -> None:
    """Print one JSON document to standard output; the only thing a command prints there with --json.

    NaN and infinities, which JSON does not have, become null.
    """
    output = _output()
    output.write(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    output.flush()  # a command may go on for hours after it


def emit_text(text: str) -> None:
    """Print text to standard output as it is."""
    _output().write(text if text.endswith("\n") else text + "\n")


def say(note: str) -> None:
    """Print a note for the user to standard error."""
    _labelled("note", "yellow", note)


def say_error(message: str) -> None:
    """Print what went wrong to standard error."""
    _labelled("error", "bold red", message)


class Saying(logging.Handler):
    """Warnings that our packages log, said as notes; without it Python prints them bare.

    Not those of a prepare: they are the lines of its own log, and the command shows bad rows and errors itself.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == PREPARE:
            return
        try:
            say(record.getMessage())
        except Exception:  # as every handler of the standard library does
            self.handleError(record)


@contextmanager
def warnings_said() -> Iterator[None]:
    """Say what our packages log as warnings while a command runs."""
    handler = Saying(logging.WARNING)
    logger = logging.getLogger("flatout")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _output() -> TextIO:
    return _documents.get() or sys.stdout


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _labelled(label: str, style: str, message: str) -> None:
    # Messages hold file names and lists in brackets, which rich would take for markup.
    error_console().print(f"{label}:", style=style, end=" ")
    error_console().print(message, markup=False)
