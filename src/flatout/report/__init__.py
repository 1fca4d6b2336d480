"""A run's record, or the doctor's, in; a page for people out: HTML, Markdown, or served while it grows."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.report.comparison import Comparison as Comparison
    from flatout.report.comparison import compare as compare
    from flatout.report.run import RunRecord as RunRecord
    from flatout.report.serve import Dashboard as Dashboard
    from flatout.report.source import read_source as read_source
    from flatout.report.write import write_comparison as write_comparison
    from flatout.report.write import write_report as write_report

_HOMES = {
    "write_report": "write",
    "write_comparison": "write",
    "compare": "comparison",
    "Comparison": "comparison",
    "read_source": "source",
    "RunRecord": "run",
    "Dashboard": "serve",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
