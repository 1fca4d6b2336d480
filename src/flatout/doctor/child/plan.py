"""What a process does after its observed steps: measure the ceiling, try remedies, stop."""

from __future__ import annotations

from flatout.doctor.ceiling.plan import block_steps, ceiling_blocks
from flatout.doctor.child.loaders import steps_of
from flatout.doctor.child.session import Plan, Session
from flatout.doctor.child.watch import WATCH
from flatout.doctor.trial.rounds import trial_blocks


def plan_of(session: Session) -> Plan:
    """Blocks of steps; when they end the script is stopped."""
    base, seen = session.base, session.primary
    if base is None or seen is None or session.settings.is_bare:
        return
    if session.settings.measures_ceiling:
        length = seen.epoch_steps or steps_of(seen.loader)
        steps = block_steps(session.mean_step_s, seen.loader.num_workers, length, session.unevenness)
        limit_s = session.settings.time_limit_s
        yield from ceiling_blocks(base, session.mean_step_s, steps, seen.loader, session.optimiser, limit_s)
    WATCH.add(("end", "ceiling"))
    if session.settings.tries:
        session.finish()
        yield from trial_blocks(session)
