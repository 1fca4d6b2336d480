"""`flatout verify`: is every byte of a store what was written, and is it still what the sources give?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json
from flatout.cli.places import check_store
from flatout.cli.progress import ProgressBar
from flatout.cli.words import count_text
from flatout.errors import ConfigError
from flatout.store import RunStats, SourceReport, VerifyReport, compare_with_source, repair, verify
from flatout.store.metadata import ROOT
from flatout.units import bytes_text

SHOWN = 20


def verify_store(
    store: Annotated[Path, typer.Argument(help="The store's folder.")],
    repair_: Annotated[
        bool, typer.Option("--repair", help="Make damaged shards and files again from the sources.")
    ] = False,
    against_source: Annotated[
        bool, typer.Option("--against-source", help="Decode the sources again and compare.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=1, help="With --against-source: only N rows, spread evenly.")
    ] = None,
    trust_store: Annotated[
        bool, typer.Option("--trust-store", help="Run code that the store names (its transform).")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every shard's hash, every sample's crc, and that index, shards and root agree. Exit 1 if not."""
    if sample is not None and not against_source:
        raise ConfigError("--sample says how many rows to compare; it needs --against-source")
    check_store(store)
    with ProgressBar() as progress:
        report = verify(store, progress)
    document: dict[str, Any] = report.to_json()
    if not as_json:
        _show(report, advises=not repair_ and not any(damage.file == ROOT for damage in report.damage))
    if report.damage and repair_:
        with ProgressBar() as progress:
            stats = repair(store, report, progress, trusted=trust_store)
        with ProgressBar() as progress:
            report = verify(store, progress)
        num_made = stats.processed - stats.failed
        document["repaired"] = {"rows": num_made, "bad": stats.failed, **report.to_json()}
        if not as_json:
            still = f", {stats.failed:,} still bad" if stats.failed else ""
            console().print(f"repaired: {count_text(num_made, 'row')} made again{still}")
            _show_bad(stats)
            _show(report)
    source = None
    if against_source and report:
        with ProgressBar() as progress:
            source = compare_with_source(store, sample, progress, trusted=trust_store)
        document["source"] = source.to_json()
        if not as_json:
            _show_source(source)
    document["ok"] = bool(report) and (source is None or bool(source))
    if as_json:
        emit_json(document)
    if not document["ok"]:
        raise typer.Exit(1)


def _show(report: VerifyReport, *, advises: bool = True) -> None:
    counts = f"{count_text(report.num_samples, 'sample')}, {count_text(report.num_shards, 'shard')}"
    size = f"{counts}, {bytes_text(report.num_bytes)}"
    if report:
        console().print(f"[green]ok[/green]: {report.store}: {size}, every hash and crc matches")
        return
    console().print(f"[bold red]damaged[/bold red]: {report.store}: {size}")
    # Files first: a shard that is lost has thousands of samples.
    for damage in sorted(report.damage, key=lambda damage: damage.key is not None)[:SHOWN]:
        where = f" sample '{damage.key}'" if damage.key else ""
        where += f" field '{damage.field}'" if damage.field else ""
        console().print(f"  {damage.file}{where}: {damage.reason}", markup=False)
    if len(report.damage) > SHOWN:
        console().print(f"  and {len(report.damage) - SHOWN:,} more (--json lists all)")
    if advises:
        console().print(f"mend it with: flatout verify {report.store} --repair", markup=False)


def _show_bad(stats: RunStats) -> None:
    """Rows that were tried again, and give no sample: nothing of the store is damaged by them."""
    for row in stats.bad[:SHOWN]:
        console().print(f"  bad: {row.path or row.key}: {row.stage}: {row.error}", markup=False)
    if len(stats.bad) > SHOWN:
        console().print(f"  and {len(stats.bad) - SHOWN:,} more ('flatout stats --json' lists all)")


def _show_source(report: SourceReport) -> None:
    verdict = "[green]ok[/green]" if report else "[bold red]differs[/bold red]"
    console().print(f"{verdict}: {count_text(report.compared, 'row')} decoded again and compared")
    groups = {
        "content differs": report.differing,
        "changed since": report.changed,
        "not in the store yet": report.new,
        "no longer in the manifest": report.gone,
        "cannot be decoded now": [f"{row.key}: {row.error}" for row in report.failed],
        "code or settings": report.code_changes,
    }
    for what, names in groups.items():
        for name in list(names)[:SHOWN]:
            console().print(f"  {what}: {name}", markup=False)
        if len(names) > SHOWN:
            console().print(f"  {what}: and {len(names) - SHOWN:,} more")
    if report.changed or report.new or report.gone:
        console().print("bring the store up to date with 'flatout prepare'")
