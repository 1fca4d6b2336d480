"""Loose facts of the training process, as `flatout.doctor.rules.facts` names them."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from flatout.doctor.child.watch import WATCH, timed
from flatout.doctor.patches.files import FILES
from flatout.doctor.patches.modules import CALLS
from flatout.doctor.workers.hand_over import HAND_OVER

if TYPE_CHECKING:
    from flatout.doctor.child.session import Session


def gather_facts(session: Session) -> dict[str, Any]:
    """Device, precision, switches of torch, and what the module calls showed."""
    parameter = _first_parameter(session.optimiser)
    device = parameter.device.type if parameter is not None else None
    return {
        "device": device,
        "precision": _precision(parameter),
        "allows_tf32": torch.get_float32_matmul_precision() != "highest",
        "is_compiled": CALLS.is_compiled,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "is_deterministic": torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled(),
        "detects_anomalies": torch.is_anomaly_enabled(),
        "num_threads": torch.get_num_threads(),
        "has_attention": CALLS.has_attention,
        "repeated_forward": CALLS.worst(),
        "device_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "torch": torch.__version__,
        "overwritten": FILES.overwritten,
        "late_files": FILES.late,
        "open_files": FILES.still_open,
        "unpacked_s": HAND_OVER.unpacked_s,
        "num_unpacked": HAND_OVER.num_unpacked,
        "row_s": _row_seconds(),
    }


def _row_seconds() -> float:
    """What one observed call costs more than a call that nobody watches."""
    watched, number = timed("own", _nothing), 200
    before, is_on = len(WATCH.log.rows), WATCH.is_on
    start = perf_counter()
    for _ in range(number):
        watched()
    seconds = perf_counter() - start
    del WATCH.log.rows[before:]
    WATCH.is_on = is_on
    return seconds / number


def _nothing() -> None:
    pass


def _first_parameter(optimiser: Any) -> torch.Tensor | None:
    groups = getattr(optimiser, "param_groups", None) or [{}]
    return next(iter(groups[0].get("params", ())), None)


def _precision(parameter: torch.Tensor | None) -> str | None:
    if CALLS.is_autocast:
        return "mixed"
    return None if parameter is None else str(parameter.dtype).removeprefix("torch.")
