"""How closely a run is watched: every look costs a synchronisation, so looks are rare by default."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from flatout.config.section import Section


class MonitorSection(Section):
    """How often the monitor of the posterior looks, draws and remembers."""

    update_frequency: PositiveInt = 100
    """Steps between two looks at the metrics."""
    plot_frequency: PositiveInt = 1000
    """Steps between two plots; a plot takes a second or more."""
    window_size: PositiveInt = 50
    """Looks that the moving averages remember."""
    verbose: bool = False
    """Log every look instead of the alarms alone."""


class MonitorSettings(Section):
    """Settings of monitoring."""

    monitor: MonitorSection = Field(default_factory=MonitorSection)
    """How often the monitor looks, draws and remembers."""
    fast_detection: bool = False
    """Look every 200 steps and draw every 2000, unless `monitor` says otherwise."""
    disable_metrics_monitoring: bool = False
    """No monitor at all: the fastest, and collapse goes unseen."""
    retune: bool = True
    """Prefetch more, or with more workers, when a run begins to wait for its data; batches stay the same."""


FAST_DETECTION = {"update_frequency": 200, "plot_frequency": 2000}
"""What `fast_detection` puts in place of the defaults of `monitor`."""
