"""All patches of one process, put in once torch is imported."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from flatout.doctor.child.plan import plan_of
from flatout.doctor.child.session import SESSION
from flatout.doctor.child.watch import WATCH
from flatout.doctor.observe.settings import read_settings
from flatout.doctor.patches.compute import patch_backward, patch_compute
from flatout.doctor.patches.files import FILES
from flatout.doctor.patches.loader import patch_loaders
from flatout.doctor.patches.logging import patch_logging
from flatout.doctor.patches.sync import patch_sync
from flatout.doctor.workers.fetch import patch_fetchers
from flatout.doctor.workers.hand_over import patch_queues
from flatout.doctor.workers.meter import flush_process, looks_are_made, meters_own_s
from flatout.doctor.workers.sampler import SAMPLER


def install(folder: Path) -> None:
    """Begin to watch this process."""
    settings = read_settings(folder)
    WATCH.begin(folder)
    WATCH.hold()
    patch_loaders(settings)
    patch_backward()
    SESSION.make_plan = plan_of
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)
    atexit.register(SESSION.finish)
    if settings.is_bare:
        return
    patch_compute()
    FILES.begin(folder)
    patch_fetchers(folder)
    patch_queues()
    patch_sync()
    patch_logging()
    SESSION.on_first_step = lambda: SAMPLER.watch_training(WATCH)
    SESSION.on_observed = _end_observation
    SESSION.on_later_epoch = looks_are_made


def _end_observation() -> None:
    SAMPLER.stop_training()
    looks_are_made()
    flush_process()
    WATCH.add(("watching", SAMPLER.cpu_s + meters_own_s()))


def _forget() -> None:
    WATCH.forget()
    SAMPLER.forget()
