"""`flatout prepare`: raw files in, a store out; run again to continue or to bring it up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flatout.cli.interruption import Interrupted, what_is_kept
from flatout.cli.options import ConfigOption, JsonOption, SetOption
from flatout.cli.output import console, emit_json, say
from flatout.cli.places import check_manifest, check_output
from flatout.cli.progress import ProgressBar
from flatout.cli.words import count_text, rate_text, seconds_text
from flatout.config import Config, resolve_config
from flatout.errors import ConfigError
from flatout.store import DataPreprocessor, RunStats, compact
from flatout.units import bytes_text

SHOWN_BAD = 5


def prepare(
    manifest: Annotated[
        str | None, typer.Argument(help="CSV, TSV, Parquet, JSON lines or folder; instead of a config.")
    ] = None,
    config: ConfigOption = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="Folder of the store (preprocessed_data_dir).")
    ] = None,
    base_path: Annotated[Path | None, typer.Option(help="Folder that relative paths start from.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Make every sample again.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Rows in one request to a worker.")] = None,
    num_workers: Annotated[int | None, typer.Option(help="Worker processes; default: one a core.")] = None,
    engine: Annotated[str | None, typer.Option(help="local or ray.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N rows; a later run adds the rest.")] = None,
    checksum: Annotated[
        bool, typer.Option("--checksum", help="Notice changed files by content, not by time.")
    ] = False,
    accept_fingerprint: Annotated[
        bool, typer.Option("--accept-fingerprint", help="Keep samples although their code changed.")
    ] = False,
    compact_: Annotated[
        bool, typer.Option("--compact", help="Give back the space of replaced and deleted samples.")
    ] = False,
    set_: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode and preprocess every row of a manifest into a store that trains at memory speed.

    Stop it with Ctrl-C whenever you like: the same command continues. Run it again after adding, changing or
    deleting data: only what changed is made anew.
    """
    if config is None and manifest is None:
        raise ConfigError("nothing to prepare: give --config FILE, or a manifest or folder")
    if manifest is not None:
        check_manifest(manifest)
    overrides: dict[str, Any] = {
        "manifest": manifest,
        "base_path": base_path and str(base_path),
        "preprocessed_data_dir": output_dir and str(output_dir),
        "preprocess_batch_size": batch_size,
        "num_workers": num_workers,
        "engine": engine,
        "limit": limit,
        "checksum": checksum or None,
    }
    settings, notes = resolve_config(config or {}, overrides=overrides, sets=set_ or ())
    for note in notes:
        say(note)
    with _stopping_well(settings), ProgressBar() as progress:
        preprocessor = DataPreprocessor(settings)
        stats = preprocessor.run(force, accept_fingerprint=accept_fingerprint, progress=progress)
    freed = compact(Path(str(settings.preprocessed_data_dir))).bytes_freed if compact_ else 0
    if as_json:
        emit_json({**stats.to_json(), "content_hash": stats.content_hash, "bytes_freed": freed})
    else:
        _show(settings, stats, freed)


@contextmanager
def _stopping_well(settings: Config) -> Iterator[None]:
    """A prepare that is stopped says what stays."""
    if settings.preprocessed_data_dir:
        check_output(Path(settings.preprocessed_data_dir))
    try:
        yield
    except KeyboardInterrupt as error:
        if not settings.preprocessed_data_dir:
            raise
        raise Interrupted(what_is_kept(Path(settings.preprocessed_data_dir))) from error


def _show(settings: Config, stats: RunStats, freed: int) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    folder = Path(str(settings.preprocessed_data_dir)).absolute()
    before = f" ({stats.continued:,} by the run before)" if stats.continued else ""
    made = f"{stats.processed - stats.failed:,} made{before}, {stats.unchanged:,} unchanged"
    made += f", {stats.removed:,} removed or replaced" if stats.removed else ""
    console().print(f"store    {folder}", markup=False)  # on a line of its own: a table would cut a long path
    table.add_row("samples", f"{stats.num_samples:,}")
    table.add_row("rows", made + (f", [red]{stats.failed:,} bad[/red]" if stats.failed else ""))
    if stats.processed:
        rate = f"{rate_text(stats.rows_per_s)} rows/s, {count_text(stats.num_workers, 'worker')}"
        table.add_row("time", f"{seconds_text(stats.wall_s)} ({rate})")
        table.add_row("size", f"{bytes_text(stats.bytes_in)} read, {bytes_text(stats.bytes_out)} written")
    for name, error in stats.largest_errors.items():
        table.add_row("encoding", f"{name}: largest error {error:.3g}")
    if freed:
        table.add_row("freed", bytes_text(freed))
    console().print(table)
    for row in stats.bad[:SHOWN_BAD]:
        console().print(f"bad: {row.path or row.key}: {row.stage}: {row.error}", style="red", markup=False)
    if stats.failed:
        where = "it is" if stats.failed == 1 else f"all {stats.failed:,} are"
        console().print(f"{where} in {folder / 'quarantine.jsonl'}", markup=False)
