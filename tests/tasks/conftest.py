"""What every test of a task runs with."""

from __future__ import annotations

from tests.one_thread import one_thread as one_thread
