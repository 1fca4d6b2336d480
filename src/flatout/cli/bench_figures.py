"""What the benchmarks print: a line while they run, a table of figures and targets at the end."""

from __future__ import annotations

from rich.table import Table

from flatout.cli.output import error_console


def print_progress(text: str) -> None:
    """A line of progress, beside standard output."""
    error_console().print(text, markup=False)


def figures(title: str) -> Table:
    """An empty table with a column each for the figure, what was measured and the target."""
    table = Table(title=title, title_justify="left")
    for name in ("figure", "measured", "target"):
        table.add_column(name, justify="left" if name == "figure" else "right")
    return table
