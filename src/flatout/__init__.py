"""Train flat out: remove the wait for data from PyTorch training."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.loader.cached import cached as cached

__version__ = "0.1.0"
__getattr__ = lazy_names(__name__, {"cached": "loader.cached"})
