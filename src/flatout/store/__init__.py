"""The HDF5 store: format, shard writer, reader, prepare, verify."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.store.against import SourceReport as SourceReport
    from flatout.store.against import compare_with_source as compare_with_source
    from flatout.store.compaction import compact as compact
    from flatout.store.forecast import summarise_source as summarise_source
    from flatout.store.mend import repair as repair
    from flatout.store.metadata import is_store as is_store
    from flatout.store.preprocessor import DataPreprocessor as DataPreprocessor
    from flatout.store.progress import Progress as Progress
    from flatout.store.reader import StoreReader as StoreReader
    from flatout.store.shard_reader import ShardReader as ShardReader
    from flatout.store.statistics import RunStats as RunStats
    from flatout.store.summary import FieldSummary as FieldSummary
    from flatout.store.summary import Summary as Summary
    from flatout.store.summary import summarise_store as summarise_store
    from flatout.store.verification import VerifyReport as VerifyReport
    from flatout.store.verification import verify as verify

_HOMES = {
    "DataPreprocessor": "preprocessor",
    "StoreReader": "reader",
    "ShardReader": "shard_reader",
    "RunStats": "statistics",
    "Progress": "progress",
    "verify": "verification",
    "VerifyReport": "verification",
    "repair": "mend",
    "compare_with_source": "against",
    "SourceReport": "against",
    "compact": "compaction",
    "summarise_store": "summary",
    "summarise_source": "forecast",
    "Summary": "summary",
    "FieldSummary": "summary",
    "is_store": "metadata",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
