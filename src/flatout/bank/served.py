"""Which views are served: told by one small file, so that worker processes follow a refresh by themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path

from flatout.bank.generation import Generation
from flatout.bank.place import generation_folder
from flatout.errors import LoaderError
from flatout.store.files import write_durable

FILE = "served.json"


def tell_served(place: Path, epoch: int) -> None:
    """From here on every process that looks there serves the views drawn for this epoch."""
    write_durable(place / FILE, [json.dumps({"epoch": epoch}).encode()], sync=False)


class Served:
    """The views that a bank serves at the moment, for every process of one training.

    Args:
        place: where `tell_served` tells it; not shared by ranks, which may be at different epochs.
        folder: where the bank keeps its views.
    """

    def __init__(self, place: Path, folder: Path) -> None:
        self.place, self.folder = place, folder
        self._found: tuple[tuple[int, int], int, Generation] | None = None

    def generation(self) -> Generation:
        """The views that are served now; another process's swap is noticed by the file's identity.

        Raises:
            LoaderError: none are: nobody has called `refresh_view_cache` yet.
        """
        try:
            status = (self.place / FILE).stat()
        except FileNotFoundError:
            raise LoaderError("no views yet: call refresh_view_cache(epoch) before reading samples") from None
        stamp, pid = (status.st_ino, status.st_mtime_ns), os.getpid()
        if self._found is None or self._found[:2] != (stamp, pid):
            epoch = int(json.loads((self.place / FILE).read_bytes())["epoch"])
            self._found = stamp, pid, Generation(generation_folder(self.folder, epoch), epoch)
        return self._found[2]

    def __getstate__(self) -> dict[str, object]:
        return {"place": self.place, "folder": self.folder, "_found": None}
