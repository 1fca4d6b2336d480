"""BankViews: a view bank as the augmentation of a run; its settings stand in the run's checkpoints."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from flatout.bank.bank import ViewBank
from flatout.errors import LoaderError
from flatout.store import StoreReader

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where a function lies: elsewhere in every process, so that a resumed run would take it for another one."""


class BankViews(nn.Module):
    """Called with a batch and its epoch, as any augmentation. The bank is made when the first batch comes, in
    the process that trains: one is for one process alone.

    Args:
        has_processes: make the next views behind the training's back, and the first ones on all cores; else
            here, while the training waits.
        store, split, settings: as of `ViewBank`. Their text says what the views are: a run that is resumed with
            others is refused, so a transform that has settings needs a `repr` with them.
    """

    def __init__(self, store: StoreReader, split: str, *, has_processes: bool = True, **settings: Any) -> None:
        super().__init__()
        self._store, self._split, self._settings = store, split, settings
        self._how: dict[str, Any] = {} if has_processes else {"background": False, "num_workers": 0}
        self._bank: ViewBank | None = None
        self._is_closed = False

    def forward(self, batch: dict[str, Tensor], epoch: int) -> dict[str, Tensor]:
        """The batch with its views of this epoch.

        Raises:
            LoaderError: it is closed, a sample has no views, or they could not be made.
        """
        return self.bank(batch, epoch)

    @property
    def bank(self) -> ViewBank:
        """What makes the views and keeps them."""
        if self._is_closed:
            raise LoaderError("these views are closed: the run that they belong to has ended")
        if self._bank is None:
            self._bank = ViewBank(self._store, self._split, **self._how, **self._settings)
        return self._bank

    def close(self) -> None:
        """Stop making views and give their memory back."""
        self._is_closed = True
        if self._bank is not None:
            self._bank.close()

    def extra_repr(self) -> str:
        """The settings, for `print` and for checkpoints."""
        told = ", ".join(f"{name}={value}" for name, value in self._settings.items())
        return f"split={self._split}, {_ADDRESS.sub('', told)}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bank": None}
