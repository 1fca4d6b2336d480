"""The whole story on data it makes: slow, prepared, verified, fast, damaged, mended, updated."""

from typing import TYPE_CHECKING

from flatout.lazy import lazy_names

if TYPE_CHECKING:
    from flatout.demo.facts import Added as Added
    from flatout.demo.facts import After as After
    from flatout.demo.facts import Before as Before
    from flatout.demo.facts import Damaged as Damaged
    from flatout.demo.facts import Mended as Mended
    from flatout.demo.facts import Outcome as Outcome
    from flatout.demo.recordings import Recordings as Recordings
    from flatout.demo.story import Demo as Demo

_HOMES = {
    "Demo": "story",
    "Recordings": "recordings",
    "Before": "facts",
    "After": "facts",
    "Damaged": "facts",
    "Mended": "facts",
    "Added": "facts",
    "Outcome": "facts",
}

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
