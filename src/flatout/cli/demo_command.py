"""`flatout demo`: the whole story on data it makes, stage by stage, with what each would be for your data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.table import Table

from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json, say_error
from flatout.cli.progress import ProgressBar
from flatout.cli.words import count_text, seconds_text
from flatout.demo import Added, After, Before, Damaged, Demo, Mended, Outcome, Recordings
from flatout.store import RunStats, VerifyReport
from flatout.units import bytes_text


def demo(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep everything in this new folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make recordings, read them the ordinary way, prepare, verify, read again, break, mend and add.

    Nothing is downloaded. Every number is measured here and now. Without --output all of it is deleted at
    the end.
    """
    teller = Teller(is_silent=as_json)
    with _place(output) as folder:
        outcome = tell_story(Demo(folder), teller)
        if as_json:
            emit_json(outcome.to_json())
        else:
            _show_summary(outcome)
            _show_place(folder if output else None)
    for problem in outcome.problems():
        say_error(problem)
    if outcome.problems():
        raise typer.Exit(1)


class Teller:
    """Prints the stages as they happen; silent for --json."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent
        self._num_stages = 0

    def begin(self, title: str, what: str, yours: str | None = None) -> None:
        """A new stage: its title, what happens in it, and the command that does it with your data."""
        self._print(f"\n[bold cyan]{self._num_stages}[/] [bold]{title}[/]")
        self._num_stages += 1
        self.tell(what)
        if yours:
            self._print(f"  [dim]yours:[/] [cyan]{yours}[/]")

    def tell(self, text: str, style: str = "") -> None:
        if not self._is_silent:
            console().print(f"  {text}", style=style, markup=False)

    def _print(self, text: str) -> None:
        if not self._is_silent:
            console().print(text)


class _Bar(ProgressBar):
    """A bar without the notes of a first prepare, which the story tells itself."""

    def say(self, text: str) -> None:
        return


def tell_story(demo: Demo, teller: Teller) -> Outcome:
    """Run every stage and tell it."""
    teller.begin("The data", "Heart sounds are made, a folder for each diagnosis.")
    made = demo.make()
    _tell_recordings(teller, made)

    teller.begin("Before", "The ordinary way: __getitem__ decodes, resamples, filters, normalises.")
    before = demo.read_before()
    _tell_before(teller, before)

    teller.begin(
        "Prepare",
        "All of that once, on every core, into a store. Bad files are set aside.",
        "flatout prepare MY_FOLDER_OR_CSV --output-dir MY_STORE",
    )
    with _Bar() as bar:
        prepared = demo.prepare(bar)
    _tell_prepared(teller, prepared)

    teller.begin("Verify", "Every byte of the store is compared with its checksums.", "flatout verify MY_STORE")
    with _Bar() as bar:
        verified = demo.verify(bar)
    _tell_verified(teller, verified)

    teller.begin("After", "The same samples in the same orders, read from the store.")
    after = demo.read_after()
    _tell_after(teller, after)

    teller.begin(
        "Damage and repair",
        "One byte of the store is flipped, as a failing disk does.",
        "flatout verify MY_STORE --repair",
    )
    damaged = demo.damage()
    _tell_damaged(teller, damaged)
    with _Bar() as bar:
        mended = demo.mend(damaged, bar)
    _tell_mended(teller, mended)

    teller.begin(
        "New data",
        "A recording is added; prepare runs again.",
        "flatout prepare MY_FOLDER_OR_CSV --output-dir MY_STORE",
    )
    with _Bar() as bar:
        added = demo.add_one(bar)
    _tell_added(teller, added)
    return Outcome(made, before, prepared, verified, after, damaged, mended, added)


def _tell_recordings(teller: Teller, made: Recordings) -> None:
    size = bytes_text(made.num_bytes)
    teller.tell(
        f"{made.num_files:,} WAV files, {len(made.classes)} classes, {size}; {len(made.broken)} are broken."
    )


def _tell_before(teller: Teller, before: Before) -> None:
    teller.tell(f"{_rate(before.timing.samples_per_s)} in one process.")
    teller.tell(f"{len(before.unreadable)} files raise an error: each would have ended a training.")


def _tell_prepared(teller: Teller, stats: RunStats) -> None:
    workers = count_text(stats.num_workers, "worker")
    teller.tell(f"{stats.num_samples:,} samples in {seconds_text(stats.wall_s)} with {workers}.")
    for row in stats.bad:
        teller.tell(f"bad: {row.path}: {row.error.removeprefix(Path(row.path).name).strip()}", style="red")


def _tell_verified(teller: Teller, report: VerifyReport) -> None:
    counts = f"{count_text(report.num_samples, 'sample')}, {count_text(report.num_shards, 'shard')}"
    size = f"{counts}, {bytes_text(report.num_bytes)}"
    teller.tell(f"{'Everything matches' if report else 'Damaged'}: {size}.", style="" if report else "red")


def _tell_after(teller: Teller, after: After) -> None:
    same = after.timing.num_samples - len(after.differing)
    teller.tell(f"{_rate(after.timing.samples_per_s)} in one process.")
    teller.tell(
        f"{same:,} of {after.timing.num_samples:,} samples are equal to the ordinary ones, bit for bit."
    )


def _tell_damaged(teller: Teller, damaged: Damaged) -> None:
    for damage in damaged.report.damage:
        teller.tell(f"damaged: {damage.file}", style="red")
        teller.tell(f"         sample {damage.key}, field {damage.field}: {damage.reason}", style="red")


def _tell_mended(teller: Teller, mended: Mended) -> None:
    same = "is what it was" if mended.same_content else "is NOT what it was"
    teller.tell(f"Repaired: {mended.rows_made} rows of that shard made again; the content hash {same}.")


def _tell_added(teller: Teller, added: Added) -> None:
    stats = added.stats
    teller.tell(
        f"{added.num_made} made, {stats.unchanged:,} kept, {stats.failed} still bad, "
        f"in {seconds_text(stats.wall_s)}."
    )


def _show_summary(outcome: Outcome) -> None:
    """The table at the end: before, after, and what it cost."""
    before, after = outcome.before.timing, outcome.after.timing
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right", style="green")
    table.add_row("samples a second", f"{before.samples_per_s:,.0f}", f"{after.samples_per_s:,.0f}")
    table.add_row(
        f"an epoch of {before.num_samples:,}",
        f"{before.epoch_s * 1e3:,.0f} ms",
        f"{after.epoch_s * 1e3:,.1f} ms",
    )
    table.add_row("files that end a run", f"{len(outcome.before.unreadable)}", "0")
    console().print()
    console().rule("[bold]before and after", align="left", style="dim")
    console().print(table)
    console().print()
    for name, text in _conclusions(outcome).items():
        console().print(f"[dim]{name:<10}[/] {text}")


def _conclusions(outcome: Outcome) -> dict[str, str]:
    epochs, num_bad = outcome.epochs_to_pay, len(outcome.bad_found)
    paid = f"paid for after {epochs} epochs" if epochs is not None else "never paid for on this data"
    return {
        "factor": f"[bold green]{outcome.factor:,.0f}x[/] in one process, files in memory both times",
        "prepare": f"{seconds_text(outcome.prepared.wall_s)} once, {paid}",
        "bad files": f"{num_bad} found and named, of {len(outcome.recordings.broken)} broken ones",
    }


def _show_place(folder: Path | None) -> None:
    if folder is None:
        console().print("\nEverything was temporary and is deleted; 'flatout demo --output DIR' keeps it.")
        return
    console().print(f"\nEverything is in {folder}. Look around:", markup=False)
    for command in (
        f"flatout stats {folder / 'store'}",
        f"flatout prepare --config {folder / 'config.yaml'}",
    ):
        console().print(f"  {command}", markup=False)


def _rate(samples_per_s: float) -> str:
    return f"{samples_per_s:,.0f} samples/s"


@contextmanager
def _place(output: Path | None) -> Iterator[Path]:
    """The folder of the demo: the one asked for, or one that is deleted in the end."""
    if output is not None:
        yield output
        return
    # Where a mapped file cannot be deleted (Windows), a leftover is better than an error at the end.
    with TemporaryDirectory(prefix="flatout-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
