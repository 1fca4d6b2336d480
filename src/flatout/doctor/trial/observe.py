"""observe_and_try: observe, diagnose, and if asked for try the remedies, all in one run of the script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flatout.doctor.diagnose import diagnose
from flatout.doctor.launch.run import Script, launch
from flatout.doctor.observe.run import NOT_ENDED, record_of
from flatout.doctor.observe.settings import ObserveSettings
from flatout.doctor.progress import Teller
from flatout.doctor.record import DoctorRecord
from flatout.doctor.trial.referee import Referee


def observe_and_try(
    script: Path | None,
    module: str | None,
    arguments: Sequence[str],
    settings: ObserveSettings,
    *,
    with_flags: bool = False,
    stdout: Any = None,
    say: Callable[[str], None] = lambda _: None,
) -> DoctorRecord:
    """A diagnosed record; with `settings.tries` its remedies have their trials.

    Args:
        with_flags: also try switches that change how numbers are rounded.
        stdout: where the script prints; absent: where this process does.
        say: told how far it is, and what is being tried.

    Raises:
        ConfigError: there is no such script.
    """
    what = Script(script, module, tuple(arguments))
    with TemporaryDirectory(prefix="flatout-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        referee = Referee(
            lambda place: diagnose(record_of(what, settings, place, NOT_ENDED)), with_flags=with_flags, say=say
        )

        teller = Teller(folder, say)

        def poll() -> None:
            teller.look()
            if settings.tries:
                referee.answer(folder)

        ended = launch(what, settings, folder, stdout=stdout, on_poll=poll)
        return referee.finish(diagnose(record_of(what, settings, folder, ended)), folder)
