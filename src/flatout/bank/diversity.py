"""Diversity: how much variety a bank has given the training, beside drawing views anew in every epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Diversity:
    """What each sample has been seen as so far."""

    num_epochs: int
    """Epochs that used the bank."""
    num_refreshes: int
    """Times that the views were drawn, the first included."""
    num_views: int
    """Views a sample has at a time."""

    @property
    def distinct_views(self) -> int:
        """Different views of a sample that were used."""
        return self.num_refreshes * self.num_views

    @property
    def views_per_epoch(self) -> float:
        """Distinct views a sample / epochs; `num_views` where every epoch draws its own."""
        return self.distinct_views / self.num_epochs if self.num_epochs else 0.0

    @property
    def share(self) -> float:
        """1 where every epoch draws its own views, 1 / n where a set serves n epochs."""
        return self.num_refreshes / self.num_epochs if self.num_epochs else 0.0

    def to_json(self) -> dict[str, float]:
        """All of it as plain numbers."""
        return asdict(self) | {
            "distinct_views": self.distinct_views,
            "views_per_epoch": self.views_per_epoch,
            "share": self.share,
        }

    def __str__(self) -> str:
        return (
            f"{self.distinct_views} distinct views a sample in {self.num_epochs} epochs "
            f"({self.views_per_epoch:.2f} an epoch, {self.share:.0%} of drawing anew each time)"
        )
