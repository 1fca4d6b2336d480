"""ViewOrder: everything that a set of views depends on, and the making of it as a store."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from flatout import __version__
from flatout.bank.fields import section_of, view_sections
from flatout.bank.maker import ViewMaker
from flatout.bank.recipe import ViewRecipe
from flatout.config import load_config
from flatout.config.fields import Encoding
from flatout.errors import ConfigError
from flatout.loader import FastDataset
from flatout.store import Progress, RunStats
from flatout.store.derive import job_from_store
from flatout.store.fingerprint import fingerprint_callable, fingerprint_settings
from flatout.store.job import Job
from flatout.store.prepare import prepare
from flatout.store.progress import Silent

_COUNTED = ("target", "files", "distributions", "state")
"""Parts of a fingerprint that stand for code and values."""


@dataclass(frozen=True)
class ViewOrder:
    """Views of one split in one epoch."""

    dataset: FastDataset
    field: str
    recipe: ViewRecipe
    epoch: int = 0
    """The epoch they are drawn for: the first that uses them."""
    keep: tuple[str, ...] = ()
    encoding: Encoding = "none"
    code: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the recipe's code and values are known by. Worked out where they are at home: a function that
    travels by value has no file at its destination."""

    def __post_init__(self) -> None:
        if not self.code:
            found = fingerprint_callable(self.recipe, {}).to_json()
            object.__setattr__(self, "code", {part: found[part] for part in _COUNTED})
        if self.encoding not in get_args(Encoding):
            known = ", ".join(get_args(Encoding))
            raise ConfigError(f"encoding '{self.encoding}': wanted one of {known}")

    def at(self, epoch: int) -> ViewOrder:
        """The same views drawn for another epoch."""
        return replace(self, epoch=epoch)

    def make(
        self,
        folder: Path,
        *,
        num_workers: int | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> RunStats:
        """Make the views as a store in `folder`; what is there and up to date stays. Continues a run cut off.

        Args:
            num_workers: processes; 0 makes them in this one, None takes one a core.
            settings: others of a prepare; `max_bad_fraction` is 0 here: every sample needs views.

        Raises:
            TooManyBadError: samples that gave no views. Otherwise as a prepare.
        """
        given = {
            "preprocessed_data_dir": str(folder),
            "num_workers": "auto" if num_workers is None else num_workers,
            "max_bad_fraction": 0.0,
            **settings,
        }
        job = self.job()
        return prepare(load_config(given, environ={}), lambda classes: job, progress=progress or Silent())

    def job(self) -> Job:
        """What a prepare works on."""
        store = self.dataset.store
        spec = store.fields[self.field]
        parts = {
            "code": self.code,
            "epoch": self.epoch,
            "field": self.field,
            "keep": list(self.keep),
            "encoding": self.encoding,
            "split": self.dataset.split,
            "flatout": __version__,
        }
        sections = view_sections(self.recipe.names, spec, self.encoding)
        sections |= {name: section_of(store.fields[name]) for name in self.keep}
        maker = ViewMaker(self.dataset, self.field, self.recipe, self.epoch, self.keep)
        fingerprint = fingerprint_settings(parts)
        return job_from_store(store, self.dataset.positions, maker, fingerprint, sections)
