"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flatout.train import amx

REPOSITORY = Path(__file__).resolve().parents[1]

# Machines are shared and slow at times: only results count, never how long a case took.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts background jobs deaf to Ctrl-C, and their children inherit it: `make test &` could not test it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where tiles of the CPU do not work, bfloat16 is tested without them; processes that tests start inherit it.
if amx.LIMIT not in os.environ and amx.has_broken_tiles():
    os.environ[amx.LIMIT] = amx.BELOW_AMX


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: 700,000 objects that no collection needs to look at."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real public samples that stands beside the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the shared sample data is not on this machine")
    return folder
