"""A store as other tools read it: one HDF5 file, WebDataset tars, Parquet, TFRecord, LMDB."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.store.export.export import FORMATS as FORMATS
    from flatout.store.export.export import export_store as export_store

_HOMES = {"export_store": "export", "FORMATS": "export"}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
