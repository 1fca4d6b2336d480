"""`flatout stats`: what is in a store, or what a manifest or folder would give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json, say
from flatout.cli.progress import ProgressBar
from flatout.cli.words import bytes_text
from flatout.config import resolve_config
from flatout.errors import ConfigError
from flatout.store import FieldSummary, Summary, is_store, summarise_source, summarise_store

SHOWN_BAD = 20


def stats(
    place: Annotated[str | None, typer.Argument(help="A store, a manifest, or a folder of files.")] = None,
    config: ConfigOption = None,
    base_path: Annotated[Path | None, typer.Option(help="Folder that relative paths start from.")] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Decode every row, write nothing; exit 1 if any is bad.")
    ] = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Counts by split and class, shapes, lengths, value ranges, bytes, and memory when cached."""
    if place is None and config is None:
        raise ConfigError("nothing to look at: name a store, a manifest or a folder, or give --config FILE")
    if place is not None and is_store(Path(place)) and not validate_only:
        summary = summarise_store(Path(place))
    else:
        overrides = {"manifest": place, "base_path": base_path and str(base_path)}
        settings, notes = resolve_config(config or {}, overrides=overrides, sets=set_ or ())
        for note in notes:
            say(note)
        with ProgressBar() as progress:
            summary = summarise_source(settings, validate=validate_only, progress=progress)
    emit_json(summary.to_json()) if as_json else _show(summary, validate_only)
    if validate_only and summary.num_bad:
        raise typer.Exit(1)


def _show(summary: Summary, validated: bool) -> None:
    for note in summary.notes:
        say(note)
    head = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    head.add_row("place", summary.place)
    head.add_row("samples", f"{summary.num_samples:,} in {summary.num_groups:,} groups")
    head.add_row("splits", ", ".join(f"{name} {count:,}" for name, count in summary.splits.items()))
    on_disk = bytes_text(summary.disk_bytes)
    head.add_row("on disk", f"{on_disk} in {summary.num_shards:,} shards" if summary.num_shards else on_disk)
    head.add_row("in memory", f"{bytes_text(summary.memory_bytes)} when cached")
    bad = f"[red]{summary.num_bad:,}[/red]" if summary.num_bad else "0"
    head.add_row("bad", bad + (" (every row was decoded)" if validated else ""))
    console().print(head)
    console().print(_field_table(summary))
    for field in summary.fields:
        if field.classes:
            console().print(_class_table(field, list(summary.splits)))
    for row in summary.bad[:SHOWN_BAD]:
        console().print(f"bad: {row.path or row.key}: {row.stage}: {row.error}", style="red", markup=False)
    if len(summary.bad) > SHOWN_BAD:
        console().print(f"and {len(summary.bad) - SHOWN_BAD:,} more (--json lists all)")


def _field_table(summary: Summary) -> Table:
    table = Table(title="fields", title_justify="left")
    for name in ("field", "kind", "dtype", "shape", "values", "lengths", "stored"):
        table.add_column(name)
    for field in summary.fields:
        values = "" if field.low is None else f"{field.low:.4g} to {field.high:.4g}, mean {field.mean:.4g}"
        lengths = "" if not field.lengths else " / ".join(f"{n:,}" for n in field.lengths.values())
        how = [part for part in (field.encoding, field.compression) if part != "none"]
        stored = bytes_text(field.num_bytes) + (f" ({', '.join(how)})" if how else "")
        shape = "(" + ", ".join("any" if n is None else str(n) for n in field.shape) + ")"
        table.add_row(field.name, field.kind, field.dtype, shape, values, lengths, stored)
    return table


def _class_table(field: FieldSummary, splits: list[str]) -> Table:
    table = Table(title=f"classes of {field.name}", title_justify="left")
    table.add_column("class")
    for split in splits:
        table.add_column(split, justify="right")
    for name, counts in (field.classes or {}).items():
        table.add_row(name, *(f"{counts.get(split, 0):,}" for split in splits))
    return table
