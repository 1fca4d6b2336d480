"""Write: a record, or two, in; one file for people out, whole or not at all."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from flatout.errors import RecordError, ReportError
from flatout.report.compare_page import compare_page
from flatout.report.comparison import Comparison
from flatout.report.doctor_page import doctor_page
from flatout.report.html import render_html
from flatout.report.markdown import render_markdown
from flatout.report.page import Page
from flatout.report.place import find_place
from flatout.report.run import RunRecord
from flatout.report.run_page import run_page
from flatout.report.source import Record, read_source


def write_report(source: str | Path | Record, output: Path, markdown: bool = False) -> None:
    """Write the page of a record.

    Args:
        source: a run folder, the JSON file of a run or of the doctor, the http address of either, or a record.
        output: the file to write; one that exists is replaced.
        markdown: Markdown instead of HTML.

    Raises:
        RecordError: there is no such record, or it cannot be read.
        ReportError: the file cannot be written.

    Example:
        >>> write_report("runs/run-0001", Path("run.html"))                         # doctest: +SKIP
    """
    _check_output(source, output)
    _write(page_of(read_source(source)), output, markdown)


def write_comparison(comparison: Comparison, output: Path, markdown: bool = False) -> None:
    """Write the page of a comparison.

    Raises:
        ReportError: the file cannot be written.
    """
    _write(compare_page(comparison), output, markdown)


def page_of(record: Record, now: datetime | None = None) -> Page:
    """The page of either kind of record.

    Args:
        now: what a run that no longer writes is told by; absent: the clock's.
    """
    try:
        return (
            run_page(record, now or datetime.now(UTC)) if isinstance(record, RunRecord) else doctor_page(record)
        )
    except RecursionError as error:
        raise RecordError("the record's values are nested too deep to be shown") from error


def _check_output(source: str | Path | Record, output: Path) -> None:
    """Refuse a folder, and the record itself: it would be lost."""
    if output.is_dir():
        raise ReportError(f"{output} is a folder; a file was wanted, such as {output / 'report.html'}")
    place = find_place(source) if isinstance(source, str | Path) else None
    if place is None or place.is_remote or not output.exists() or not Path(place.address).exists():
        return
    if output.samefile(place.address):
        raise ReportError(f"{output} is the record itself; give the report another name")


def _write(page: Page, output: Path, markdown: bool) -> None:
    text = render_markdown(page) if markdown else render_html(page)
    temporary = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(text.encode("utf-8"))
        temporary.replace(output)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        reason = error.strerror or error
        raise ReportError(f"{output} cannot be written: {reason}; --output names another place") from error
