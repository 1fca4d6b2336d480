"""Every command of `flatout`: its name, where it is, and one line of help. A new command is a new line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command whose module is imported only when it runs."""

    target: str
    """"package.module:name" of a function or of a `typer.Typer` with commands of its own."""
    help: str


COMMANDS: dict[str, Command] = {
    "config": Command("flatout.cli.config_command:config", "Print the resolved config, or its schema."),
    "presets": Command("flatout.cli.presets_command:presets", "List the presets, or print one."),
}
