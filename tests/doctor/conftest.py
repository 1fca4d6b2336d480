"""What several tests of the doctor look at."""

from __future__ import annotations

import pytest
from tests.doctor import scripts
from tests.doctor.running import FEW, run

from flatout.doctor.record import DoctorRecord


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> DoctorRecord:
    """A plain loop without workers, observed once."""
    return run(tmp_path_factory.mktemp("plain"), scripts.PLAIN, settings=FEW)
