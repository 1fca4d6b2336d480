"""A typer group that imports a command's module when it runs, and shows help without importing any."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from flatout.cli.commands import COMMANDS


class LazyGroup(TyperGroup):
    """Knows every command by its line in the table; loads the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, stub, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and stub else stub, rest


def load_command(name: str) -> Any:
    """The typer command of that name, with its module imported."""
    module, _, attribute = COMMANDS[name].target.partition(":")
    with _held_back():
        target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        target = _as_app(name, target)
    loaded = typer.main.get_command(target)
    _hide_types_of_flags(loaded)
    return loaded


@contextmanager
def _held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is over, a second at the most. Raised while a module builds its
    classes they may come out as another error: pydantic says that its schema is wrong."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: waiting.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if waiting:
        signal.raise_signal(waiting[0])


def add_stubs(app: typer.Typer) -> None:
    """Give `app` a stand-in for each command of the table, for its name and line of help."""
    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_stub)


def _as_app(name: str, function: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return app


def _hide_types_of_flags(command: Any) -> None:
    """Help shows `<bool>` after a flag otherwise, as if it took a value."""
    for parameter in command.get_params(typer.Context(command)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for inner in getattr(command, "commands", {}).values():
        _hide_types_of_flags(inner)


def _stub() -> None:
    raise AssertionError("a stub was run instead of its command")
