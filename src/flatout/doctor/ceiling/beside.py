"""A busy process beside the training: what a worker on the next core takes from a step."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from flatout.doctor.ceiling.sources import ResidentSource

BUSY = """
import os, sys, zlib
data = bytes(range(256)) * 1024
packed, parent = zlib.compress(data, 1), int(sys.argv[1])
sys.stdout.write("x")
sys.stdout.close()
while os.getppid() == parent:
    zlib.decompress(packed)
"""
"""Decodes without end, as workers do; it ends with the process that started it."""


class BesideSource(ResidentSource):
    """Resident batches, while another process is busy."""

    name = "beside"

    def __init__(self, kept: list[Any]) -> None:
        super().__init__(kept)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it, and wait until it works. Without it the steps take what they take anyway."""
        command = [sys.executable, "-I", "-S", "-c", BUSY, str(os.getpid())]
        try:
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=nothing, stdout=subprocess.PIPE, stderr=nothing)
        except OSError:
            return
        if self._process.stdout is not None:
            with self._process.stdout as said:
                said.read(1)

    def end(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
