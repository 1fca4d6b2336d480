"""What the command line prints: results to standard output, words about them to standard error."""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


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
    sys.stdout.write(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def emit_text(text: str) -> None:
    """Print text to standard output as it is."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def say(note: str) -> None:
    """Print a note for the user to standard error."""
    _labelled("note", "yellow", note)


def say_error(message: str) -> None:
    """Print what went wrong to standard error."""
    _labelled("error", "bold red", message)


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
