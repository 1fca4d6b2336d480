"""Precomputed views and embeddings: made once, kept, refreshed in the background, looked at."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.bank.bank import ViewBank as ViewBank
    from flatout.bank.dataset import ViewDataset as ViewDataset
    from flatout.bank.diversity import Diversity as Diversity
    from flatout.bank.embeddings import precompute_embeddings as precompute_embeddings
    from flatout.bank.precompute import precompute_views as precompute_views
    from flatout.bank.preview import draw_preview as draw_preview
    from flatout.bank.recipe import ViewRecipe as ViewRecipe
    from flatout.bank.views import BankViews as BankViews

_HOMES = {
    "ViewBank": "bank",
    "ViewDataset": "dataset",
    "BankViews": "views",
    "ViewRecipe": "recipe",
    "Diversity": "diversity",
    "precompute_views": "precompute",
    "precompute_embeddings": "embeddings",
    "draw_preview": "preview",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
