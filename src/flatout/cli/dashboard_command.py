"""`flatout dashboard`: a run's page on this machine while the run is under way."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.options import JsonOption
from flatout.cli.output import emit_json, error_console, say
from flatout.errors import ConfigError
from flatout.report import Dashboard
from flatout.report.place import why_no_run


def dashboard(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUNDIR", help="Run folder here or on a mounted disk, JSON record, or another dashboard."
        ),
    ],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.", min=0, max=65535)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Serve the page of a run, and follow its record until Ctrl-C.

    Only this machine reaches it, and nothing can be changed through it. For a run elsewhere: start it there
    and open a tunnel ('ssh -L 8080:127.0.0.1:PORT HOST'), or give its address here.
    """
    if why := why_no_run(source):
        raise ConfigError(f"{why}; 'flatout train' names the folder of its run when it begins")
    with Dashboard(source, port) as served:
        if as_json:
            emit_json({"address": served.address})
        error_console().print(f"dashboard  {served.address}   (Ctrl-C ends it)", markup=False)
        if why := served.trouble():
            say(f"there is nothing to show yet: {why}; the page looks again every few seconds")
        try:
            served.wait()
        except KeyboardInterrupt:
            error_console().print("the dashboard is closed; the run goes on", markup=False)
