"""`flatout stats`: what is in a store, or what a manifest or folder would give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json, say, say_error
from flatout.cli.places import check_finished, check_manifest
from flatout.cli.progress import ProgressBar
from flatout.cli.words import count_text
from flatout.config import resolve_config
from flatout.errors import ConfigError, StoreError
from flatout.store import FieldSummary, Summary, is_store, summarise_source, summarise_store, verify
from flatout.store.receipt import BadRow
from flatout.units import bytes_text

SHOWN_BAD = 20


def stats(
    place: Annotated[str | None, typer.Argument(help="A store, a manifest, or a folder of files.")] = None,
    config: ConfigOption = None,
    base_path: Annotated[Path | None, typer.Option(help="Folder that relative paths start from.")] = None,
    validate_only: Annotated[
        bool,
        typer.Option(
            "--validate-only",
            help="Decode every row, or check every sample of a store; write nothing; exit 1 if any is bad.",
        ),
    ] = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Counts by split and class, shapes, lengths, value ranges, bytes, and memory when cached."""
    if place is None and config is None:
        raise ConfigError("nothing to look at: name a store, a manifest or a folder, or give --config FILE")
    if place is not None and is_store(Path(place)):
        summary = _of_store(Path(place), validate_only)
    else:
        summary = _of_source(place, config, base_path, set_, validate_only)
    emit_json(summary.to_json()) if as_json else _show(summary, validate_only)
    if summary.refusal and not as_json:
        say_error(f"a prepare would stop: {summary.refusal}")
    if summary.refusal or (validate_only and summary.num_bad):
        raise typer.Exit(1)


def _of_store(folder: Path, validate: bool) -> Summary:
    """A store in numbers; validated, what is damaged of it takes the place of the rows that it left out."""
    if not validate:
        return summarise_store(folder)
    with ProgressBar() as progress:
        report = verify(folder, progress)
    places = [f"{d.file} sample '{d.key}'" if d.key else d.file for d in report.damage]
    bad = [BadRow(d.key or "", at, "verify", d.reason) for d, at in zip(report.damage, places, strict=True)]
    try:
        summary = summarise_store(folder)
    except StoreError:
        if report:
            raise
        summary = Summary(str(folder), report.num_samples, {}, (), report.num_shards, report.num_bytes)
    return replace(summary, num_bad=len(bad), bad=bad)


def _of_source(
    place: str | None, config: Path | None, base_path: Path | None, sets: list[str] | None, validate: bool
) -> Summary:
    if place is not None:
        check_finished(Path(place))
        check_manifest(place)
    overrides = {"manifest": place, "base_path": base_path and str(base_path)}
    settings, notes = resolve_config(config or {}, overrides=overrides, sets=sets or ())
    for note in notes:
        say(note)
    with ProgressBar() as progress:
        return summarise_source(settings, validate=validate, progress=progress)


def _show(summary: Summary, validated: bool) -> None:
    for note in summary.notes:
        say(note)
    head = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in _head(summary, validated):
        head.add_row(name, text)
    tables = [_field_table(summary), _value_table(summary)] if summary.fields else []
    tables += [_class_table(field, list(summary.splits)) for field in summary.fields if field.classes]
    for table in (head, *tables):
        if table is not None:
            console().print(table)
    for row in summary.bad[:SHOWN_BAD]:
        console().print(f"bad: {row.path or row.key}: {row.stage}: {row.error}", style="red", markup=False)
    if len(summary.bad) > SHOWN_BAD:
        console().print(f"and {len(summary.bad) - SHOWN_BAD:,} more (--json lists all)")


def _head(summary: Summary, validated: bool) -> Iterator[tuple[str, str]]:
    """The lines above the tables; what was not counted but reckoned from a few rows is called about."""
    about = "" if validated or summary.num_decoded == summary.num_rows else "about "
    yield "place", escape(summary.place)
    if summary.num_rows is not None:
        yield "rows", f"{summary.num_rows:,}"
    if summary.num_samples is None:
        yield "samples", "unknown: no row could be decoded"
    else:
        many = summary.num_groups < summary.num_samples
        groups = f" in {count_text(summary.num_groups, 'group')}" if many else ""
        yield "samples", f"{about}{summary.num_samples:,}{groups}"
        yield "splits", ", ".join(f"{name} {count:,}" for name, count in summary.splits.items())
    shards = f" in {count_text(summary.num_shards, 'shard')}" if summary.num_shards else ""
    yield "on disk", f"{bytes_text(summary.disk_bytes)}{shards}"
    if summary.num_samples is not None:
        varies = summary.num_rows is not None and any(None in field.shape for field in summary.fields)
        yield "in memory", f"{'about ' if varies else about}{bytes_text(summary.memory_bytes)} when cached"
    yield "bad", _bad_text(summary, validated)


def _bad_text(summary: Summary, validated: bool) -> str:
    """How many rows are bad, and how much of a manifest was looked at to know that."""
    bad = f"[red]{summary.num_bad:,}[/red]" if summary.num_bad else "0"
    if summary.num_rows is None:
        return f"{bad} (every hash and crc was checked)" if validated else bad
    if validated:
        return f"{bad} (every row was decoded)"
    return f"{bad} found: {summary.num_decoded:,} of {summary.num_rows:,} rows decoded, files of all looked for"


def _field_table(summary: Summary) -> Table:
    table = _table("fields", "field", "kind", "dtype", "shape", "encoding")
    table.add_column("stored", justify="right")
    for field in summary.fields:
        how = ", ".join(part for part in (field.encoding, field.compression) if part != "none")
        shape = "(" + ", ".join("?" if n is None else str(n) for n in field.shape) + ")"
        table.add_row(field.name, field.kind, field.dtype, shape, how, _stored(field))
    return table


def _stored(field: FieldSummary) -> str:
    """Bytes on disk, and for a compressed field how much smaller that is than without."""
    if field.disk_bytes is None:
        return bytes_text(field.num_bytes) + (" uncompressed" if field.compression != "none" else "")
    ratio = field.num_bytes / field.disk_bytes if field.disk_bytes else 1.0
    told = f" (1/{ratio:.1f})" if field.compression != "none" else ""
    return bytes_text(field.disk_bytes) + told


def _value_table(summary: Summary) -> Table | None:
    """Value ranges, and for fields whose samples differ in shape their lengths or the range of shapes."""
    rows = [(field.name, _values_of(field) | _measured(field, summary)) for field in summary.fields]
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    if not names:
        return None
    table = _table("values", "field")
    for name in names:
        table.add_column(name, justify="right")
    for field, values in rows:
        table.add_row(field, *(values.get(name, "") for name in names))
    return table


def _values_of(field: FieldSummary) -> dict[str, str]:
    numbers = {"lowest": field.low, "highest": field.high, "mean": field.mean}
    told = {name: f"{number:.3g}" for name, number in numbers.items() if number is not None}
    counts = {"NaN": field.num_nan, "infinite": field.num_infinite}
    told |= {name: f"{count:,}" for name, count in counts.items() if count}
    told |= {name: f"{count:,}" for name, count in (field.lengths or {}).items()}
    if field.shapes is not None and field.lengths is None:
        axes = [f"{low}" if low == high else f"{low}-{high}" for low, high in field.shapes]
        told["shapes"] = f"({', '.join(axes)})"
    return told


def _measured(field: FieldSummary, summary: Summary) -> dict[str, str]:
    """How many samples the values are of, where a store has more than are read for them."""
    is_part = summary.num_rows is None and 0 < field.num_measured < (summary.num_samples or 0)
    return {"measured": f"{field.num_measured:,} samples"} if is_part else {}


def _class_table(field: FieldSummary, splits: list[str]) -> Table:
    table = _table(f"classes of {field.name}", "class")
    for split in splits:
        table.add_column(split, justify="right")
    for name, counts in (field.classes or {}).items():
        table.add_row(name, *(f"{counts.get(split, 0):,}" for split in splits))
    return table


def _table(title: str, *columns: str) -> Table:
    """A table without lines: six columns of a field then fit a terminal of 80."""
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, header_style="dim")
    table.padding = (0, 2, 0, 0)
    for name in columns:
        table.add_column(name)
    return table
