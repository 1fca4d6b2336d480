"""Remedies for a training that computes: work done twice, idle cores, precision, compiling, batch size."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.record import Remedy
from flatout.doctor.rules.case import Case
from flatout.doctor.rules.words import count, duration, place, share, times
from flatout.loader.platform import suggest_batch_size
from flatout.units import bytes_text

SCALING = 0.85
"""What a further core adds to a computation that is spread over all of them, against a core of its own."""
ONE_PAYS = 1.2
"""From here on one thread is advised. Several are seldom so much slower, unless steps are tiny or others busy:
then each waits at the end of every operation for one that has no core."""
BUSY = 0.8
"""Utilisation of the device below which it waits for the host."""
HEADROOM = (0.1, 0.2)
"""Share of the device's memory that should stay free: less is a risk, with more batches could be larger."""
MIXED_GAIN = 1.3
"""Half precision on a GPU: 1.2 to 2 times by what people report; the lower end is predicted."""
DOUBLE_GAIN = 1.6
"""float32 for float64: half the bytes, twice the numbers in a register; not all of a step is arithmetic."""


def advise_once(case: Case) -> Remedy | None:
    """A module that runs once a step, not twice."""
    found = case.facts.repeated_forward
    if not found:
        return None
    calls, name = max(1.0, float(found.get("calls_per_step") or 2.0)), found.get("module") or "the model"
    # The calls were timed in a few steps. If they are most of what repeating the whole forward would take, that
    # is what they are, and the forward of all steps tells it better.
    whole_s = case.seconds["forward"] * (1 - 1 / calls)
    seen_s = float(found.get("seconds_per_step") or 0.0)
    spent_s = whole_s if seen_s >= 0.5 * whole_s else seen_s
    if spent_s < 0.03 * case.step_s:
        return None
    file = str(found.get("file") or "")
    where = f" ({place(file, int(found.get('line') or 0))})" if file else ""
    return Remedy(
        name="forward_once",
        evidence=f"{name} runs forward {calls:.3g} times a step{where}; "
        f"all but the first take {duration(spent_s)}",
        predicted_gain=case.gain_without(spent_s),
        cost="none",
        how="keep what the first call returned and use it again, detached where no gradient is wanted: "
        "outputs = model(inputs); ...; accuracy_of(outputs.detach())",
    )


def advise_threads(case: Case) -> Remedy | None:
    """One thread where several are in each other's way; all cores where one thread computes."""
    gain = case.facts.one_thread_gain or 1.0
    if gain >= ONE_PAYS:
        return Remedy(
            name="threads",
            evidence=f"{case.facts.num_threads} threads compute a step; one alone was {times(gain)} as fast, "
            "with batches from memory",
            predicted_gain=case.gain_without(_core_s(case) * (1 - 1 / gain)),
            cost="none; sums are rounded in another order",
            how="torch.set_num_threads(1), or OMP_NUM_THREADS=1 in the environment",
            settings={"num_threads": 1},
            changes_results=True,
        )
    return _advise_more_threads(case)


def _advise_more_threads(case: Case) -> Remedy | None:
    """All cores for a model on the CPU, where one thread computes."""
    threads, cores = case.facts.num_threads, case.machine.num_cores
    if case.is_on_gpu or threads is None or threads >= cores or case.loader.num_workers or case.is_crowded:
        return None
    core_s = _core_s(case)
    # Threads beside each other slow each other down, as processes do.
    speed = (threads + SCALING * (cores - threads)) / (threads * (1 + case.slowdown * (cores - threads)))
    saved_s = core_s * (1 - 1 / max(1.0, speed))
    return Remedy(
        name="threads",
        evidence=f"the model computes on {count(threads, 'core')} of {cores}, "
        f"{share(core_s / case.step_s)} of a step",
        predicted_gain=case.gain_without(saved_s),
        cost="none; sums are rounded in another order",
        how=f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores} in the environment",
        settings={"num_threads": cores},
        changes_results=True,
    )


def _core_s(case: Case) -> float:
    """Seconds of a step that are spread over threads."""
    return case.seconds["forward"] + case.seconds["backward"] + case.seconds["optimiser"]


def advise_precision(case: Case) -> Remedy | None:
    """Fewer bits where the device is faster with them."""
    precision = case.facts.precision
    if precision == "float64":
        return Remedy(
            name="precision",
            evidence="the model computes in float64",
            predicted_gain=case.gain_without(case.compute_s * (1 - 1 / DOUBLE_GAIN)),
            cost="half the memory; the last digits",
            how="model.float(), and tensors made of numpy arrays: torch.from_numpy(x).float()",
            changes_results=True,
        )
    if not case.is_on_gpu or precision not in ("float32", None):
        return None
    return Remedy(
        name="precision",
        evidence=f"the model computes in float32 on a GPU, {share(case.compute_s / case.step_s)} of a step",
        predicted_gain=case.gain_without(case.compute_s * (1 - 1 / MIXED_GAIN)),
        cost="a third less memory; results differ in the third digit",
        how='with torch.autocast("cuda", dtype=torch.bfloat16): around forward and loss (Lightning: '
        'precision="bf16-mixed")',
        changes_results=True,
    )


def advise_tf32(case: Case) -> Remedy | None:
    """float32 products in the format that tensor cores have for them."""
    if not case.is_on_gpu or case.facts.precision != "float32" or case.facts.allows_tf32 is not False:
        return None
    return Remedy(
        name="tf32",
        evidence="float32 products are computed with all bits",
        predicted_gain=None,
        cost="products are rounded to 10 bits of mantissa",
        how='torch.set_float32_matmul_precision("high")',
        settings={"matmul_precision": "high"},
        changes_results=True,
    )


def advise_compile(case: Case) -> Remedy | None:
    """torch.compile, on a GPU: on a CPU its start alone may take longer than what it wins."""
    if not case.is_on_gpu or case.facts.is_compiled:
        return None
    return Remedy(
        name="compile",
        evidence=f"{share(case.compute_s / case.step_s)} of a step computes, the model is not compiled",
        predicted_gain=None,
        cost="a minute at the start, again for every new shape",
        how="model = torch.compile(model)",
        changes_results=True,
    )


def advise_batch_size(case: Case) -> Remedy | None:
    """Larger batches while the device's memory is half empty; smaller ones when it is nearly full."""
    gpu, used = case.machine.gpu, most_device_bytes(case)
    if gpu is None or used is None or not case.is_on_gpu:
        return None
    free = 1 - used / gpu.memory_bytes
    if HEADROOM[0] <= free <= HEADROOM[1]:
        return None
    sizes = suggest_batch_size(case.machine)
    usual = f" (for volumes {sizes[0]}-{sizes[1]} is usual with this GPU)" if sizes else ""
    now = case.loader.batch_size
    better = "smaller, with gradient accumulation" if free < HEADROOM[0] else "larger"
    return Remedy(
        name="batch_size",
        evidence=f"{bytes_text(used)} of the device's {bytes_text(gpu.memory_bytes)} are used, "
        f"{share(free)} are free",
        predicted_gain=None,
        cost="memory of the device; the learning rate may have to follow",
        how=f"batch_size={now} {better}{usual}, so that 10-20 % stay free" if now else f"a {better} batch",
        changes_results=True,
    )


def advise_fewer_synchronisations(case: Case) -> Remedy | None:
    """Lines that wait for the device, out of the loop."""
    points = [point for point in case.record.sync_points if point.per_step > 0]
    spent_s = sum(point.seconds_per_step for point in points)
    if not case.is_on_gpu or not points or (spent_s < 0.05 * case.step_s and utilisation(case) >= BUSY):
        return None
    worst = max(points, key=lambda point: point.seconds_per_step)
    return Remedy(
        name="synchronise",
        evidence=f"{count(len(points), 'line')} wait for the device in every step, {duration(spent_s)} "
        f"together; most of it {worst.call} in {place(worst.file, worst.line)}",
        # What was waited for was being computed: only the gap until the next kernel is won.
        predicted_gain=None,
        cost="numbers are shown a few steps later",
        how="keep the loss as a tensor (total += loss.detach()) and call .item() every 50 steps; copy with "
        ".to(device, non_blocking=True)",
    )


def advise_cudnn(case: Case) -> Remedy | None:
    """Convolution algorithms chosen by trying, not the first deterministic one."""
    if not case.is_on_gpu or not (case.facts.is_deterministic or case.facts.cudnn_benchmark is False):
        return None
    why = "deterministic algorithms are asked for" if case.facts.is_deterministic else "cudnn.benchmark is off"
    return Remedy(
        name="cudnn",
        evidence=why,
        predicted_gain=None,
        cost="runs differ in the last digits",
        how="torch.backends.cudnn.deterministic = False; torch.backends.cudnn.benchmark = True (where shapes "
        "repeat)",
        settings={"cudnn_benchmark": True},
        changes_results=True,
    )


def advise_no_anomaly_detection(case: Case) -> Remedy | None:
    """Anomaly detection only while looking for one."""
    if not case.facts.detects_anomalies:
        return None
    return Remedy(
        name="anomaly",
        evidence="autograd's anomaly detection is on: every operation keeps its traceback and checks for nan",
        predicted_gain=None,
        cost="none",
        how="torch.autograd.set_detect_anomaly(False) (Lightning: detect_anomaly=False)",
    )


def advise_model(case: Case) -> Remedy | None:
    """A cheaper model, where nothing else is left on a GPU that is busy."""
    if not case.is_on_gpu or utilisation(case) < BUSY:
        return None
    attention = "; torch.nn.functional.scaled_dot_product_attention in place of hand-written attention"
    return Remedy(
        name="model",
        evidence=f"the device is busy {share(utilisation(case))} of the time",
        predicted_gain=None,
        cost="quality, to be measured",
        how="fewer layers or channels, shorter sequences" + (attention if case.facts.has_attention else ""),
        changes_results=True,
    )


def utilisation(case: Case) -> float:
    """Mean utilisation of the device, 0 to 1; where no counter tells, the part of a step without waiting."""
    seen = [look.device_utilisation for look in case.record.looks if look.device_utilisation is not None]
    return sum(seen) / len(seen) if seen else 1.0 - case.share_of("wait")


def most_device_bytes(case: Case) -> int | None:
    """The most of the device's memory that was seen in use."""
    return max((look.device_bytes for look in case.record.looks if look.device_bytes is not None), default=None)


COMPUTE_RULES: tuple[Callable[[Case], Remedy | None], ...] = (
    advise_once,
    advise_threads,
    advise_precision,
    advise_tf32,
    advise_no_anomaly_detection,
    advise_fewer_synchronisations,
    advise_compile,
    advise_batch_size,
    advise_cudnn,
    advise_model,
)
