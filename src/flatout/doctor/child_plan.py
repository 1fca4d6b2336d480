"""What a process does after its observed steps: measure the ceiling, try remedies, stop."""

from __future__ import annotations

from flatout.doctor.ceiling_plan import ceiling_blocks
from flatout.doctor.child_loaders import steps_of
from flatout.doctor.child_session import Plan, Session
from flatout.doctor.child_watch import WATCH
from flatout.doctor.try_rounds import trial_blocks


def plan_of(session: Session) -> Plan:
    """Blocks of steps; when they end the script is stopped."""
    base, seen = session.base, session.primary
    if base is None or seen is None or session.settings.is_bare:
        return
    if session.settings.measures_ceiling:
        yield from ceiling_blocks(base, session.mean_step_s, seen.epoch_steps or steps_of(seen.loader))
    WATCH.add(("end", "ceiling"))
    if session.settings.tries:
        session.finish()
        yield from trial_blocks(session)
