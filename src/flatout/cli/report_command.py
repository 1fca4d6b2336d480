"""`flatout report`: the record of a run or of the doctor in, one page for people out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.options import JsonOption
from flatout.cli.output import console, emit_json
from flatout.errors import ConfigError
from flatout.report import RunRecord, read_source, write_report
from flatout.units import bytes_text


def report(
    source: Annotated[
        str, typer.Argument(metavar="RUN|DOCTOR_JSON", help="Run folder, JSON record, or its http address.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; default: report.html beside the record."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown instead of HTML; also for a name that ends in .md.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one self-contained page: verdict, where the time goes, utilisation, memory, settings, machine.

    It needs no network and no script, and can be mailed, printed, or read on a phone.
    """
    is_markdown = markdown or (output is not None and output.suffix.lower() == ".md")
    record = read_source(source)
    place = output or _beside(source) / f"report.{'md' if is_markdown else 'html'}"
    if place.suffix.lower() == ".json" and place.exists():
        raise ConfigError(f"--output: {place} may be a record; a report ends in .html or .md")
    write_report(record, place, is_markdown)
    size = place.stat().st_size
    if as_json:
        kind = "run" if isinstance(record, RunRecord) else "doctor"
        emit_json({"report": str(place), "kind": kind, "markdown": is_markdown, "bytes": size})
    else:
        console().print(f"report   {place.absolute()} ({bytes_text(size)})", markup=False)


def _beside(source: str) -> Path:
    """The folder of a record; for an address the current one."""
    path = Path(source)
    if "://" in source:
        return Path()
    return path if path.is_dir() else path.parent
