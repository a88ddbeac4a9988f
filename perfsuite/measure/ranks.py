"""Join the readings of all ranks into one: totals, the worst rank's figures, and the skew between ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from perfsuite.devices.protocol import Device, Plan
from perfsuite.errors import UnusableStep
from perfsuite.measure.step import gc_paused, measure_step, warm_up
from perfsuite.metrics import METRICS
from perfsuite.processes.world import Alone, Together
from perfsuite.records import Reading
from perfsuite.statistics import median, ratio_interval

_SUMMED = ("queued_seconds", "alloc_retries", "device_allocations")
_MIN_PAIRS = 6
_MAX_PAIRS = 60
_PRECISION = 0.03  # stop when the interval is this narrow on each side
_BLOCK_SECONDS = 0.2
MODES = ("weak", "strong")
Step = Callable[[], Any]


def join(readings: Sequence[Reading]) -> Reading:
    """Return one reading for all ranks, in which each figure is a total or that of the worst rank."""
    first = readings[0]
    figures = tuple(rank_figures(reading) for reading in readings)
    wall = max(reading.wall_seconds for reading in readings)
    samples = sum(reading.samples for reading in readings)
    slowest = max(range(len(readings)), key=lambda rank: figures[rank].get("own_seconds", 0.0))
    merged = {name: _worst(readings, name) for name in first.figures}
    merged |= {"samples_per_s": samples / wall if wall > 0 else None, "rank_skew": skew(figures)}
    return replace(
        first.with_figures(**merged),
        intervals=_worst_intervals(readings),
        samples=samples,
        wall_seconds=wall,
        rounds=max((reading.rounds for reading in readings), key=sum),
        reported=_reported(readings),
        notes=_merged_texts([reading.notes for reading in readings]),
        invalid=_merged_texts([reading.invalid for reading in readings]),
        series=readings[slowest].series,
        memory_series=readings[slowest].memory_series,
        shares=readings[slowest].shares,
        clues={**readings[slowest].clues, "slowest_rank": float(slowest)},
        ranks=figures,
        without=None if first.without is None else join([r.without for r in readings if r.without]),
    )


def rank_figures(reading: Reading) -> Mapping[str, float]:
    """Return one rank's figures; `own_seconds` is the step time without waiting for other ranks."""
    figures = {
        "samples_per_s": reading.samples_per_s,
        "step_seconds": reading.step_seconds,
        "utilization": reading.utilization,
        "peak_memory_bytes": reading.peak_memory_bytes,
        "data_wait": reading.data_wait,
        "collective_seconds": reading.reported.get("collective_seconds"),
        "collective_exposed_seconds": reading.reported.get("collective_exposed_seconds"),
        "queued_share": _share(reading.reported.get("queued_seconds"), reading.wall_seconds),
        "clock_mhz": reading.reported.get("sm_clock_mhz"),
    }
    if reading.step_seconds is not None:
        exposed = reading.clues.get("collective_exposed_share", 0.0)
        waited = exposed if isinstance(exposed, float | int) else 0.0
        figures["own_seconds"] = reading.step_seconds * (1 - waited)
    return {name: value for name, value in figures.items() if value is not None}


def skew(figures: Sequence[Mapping[str, float]]) -> float | None:
    """Return how much less work the fastest rank has than the slowest, as a share of the slowest's."""
    seconds = [rank["own_seconds"] for rank in figures if "own_seconds" in rank]
    if len(seconds) < 2 or max(seconds) <= 0:
        return None
    return (max(seconds) - min(seconds)) / max(seconds)


def _worst(readings: Sequence[Reading], name: str) -> float | None:
    """Return the worst figure of all ranks, None if any rank lacks it."""
    values = [reading.figures[name] for reading in readings if name in reading.figures]
    if len(values) < len(readings):
        return None
    return min(values) if METRICS[name].higher_is_better else max(values)


def _worst_intervals(readings: Sequence[Reading]) -> dict[str, tuple[float, float]]:
    """Return the lowest ends of all ranks' intervals: a gain is proven if every rank has it."""
    return {
        name: (
            min(reading.intervals[name][0] for reading in readings),
            min(reading.intervals[name][1] for reading in readings),
        )
        for name in readings[0].intervals
        if all(name in reading.intervals for reading in readings)
    }


def _reported(readings: Sequence[Reading]) -> dict[str, float]:
    """Return the first rank's reported figures, with totals and mean collective times of all ranks."""
    reported = dict(readings[0].reported)
    for name in _SUMMED:
        if name in reported:
            reported[name] = sum(reading.reported.get(name, 0.0) for reading in readings)
    for name in ("collective_seconds", "collective_exposed_seconds", "collective_hidden_share"):
        known = [reading.reported[name] for reading in readings if name in reading.reported]
        if known:
            reported[name] = sum(known) / len(known)
    return reported


def _merged_texts(by_rank: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return texts that all ranks share once, and the others with their rank."""
    common = [text for text in by_rank[0] if all(text in texts for texts in by_rank)]
    single = [f"rank {i}: {text}" for i, texts in enumerate(by_rank) for text in texts if text not in common]
    return (*common, *single)


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else part / whole


def measure_scaling(
    build: Callable[[Together], Step],
    device: Device,
    plan: Plan,
    *,
    samples_per_step: int,
    mode: str,
    name: str = "",
) -> Reading:
    """Measure the training on all ranks, in turns with the same training on one rank alone.

    The first rank runs alone while the others wait without computing. So what the others take from it (cores,
    memory bandwidth, a shared bus) counts as a cost of scaling.
    """
    together = plan.together
    if mode not in MODES:
        raise UnusableStep(f"mode is {mode!r}; choose {' or '.join(MODES)}")
    if together.size == 1:
        raise UnusableStep("perf.scaling needs several ranks; mark the test with @pytest.mark.multi_gpu(2)")
    alone = build(Alone()) if together.rank == 0 else None
    joint = build(together)
    per_rank = samples_per_step if mode == "weak" else max(samples_per_step // together.size, 1)
    reading = measure_step(joint, device, plan, per_rank, name)
    with gc_paused():
        if alone is not None:
            warm_up(alone, device, plan.max_seconds / 2, plan.progress)
        pairs = _interleave(alone, joint, device, plan)
    ratio, low, high = ratio_interval(pairs)
    ideal = 1.0 if mode == "weak" else float(together.size)
    return replace(
        reading.with_figures(scaling_efficiency=ratio / ideal),
        kind="scaling",
        intervals={"scaling_efficiency": (low / ideal, high / ideal)},
        reported={
            **reading.reported,
            "one_rank_step_seconds": median([single for single, _ in pairs]),
            "joint_step_seconds": median([joined for _, joined in pairs]),
        },
    )


def _interleave(alone: Step | None, joint: Step, device: Device, plan: Plan) -> list[tuple[float, float]]:
    """Time blocks of one rank and of all ranks in turns; every rank returns the same pairs."""
    together, started, pairs = plan.together, device.now(), []
    # Blocks of several steps, as many as the slower of both allows: single steps are too short to time
    # across processes.
    single = together.first(_block(alone, 1, device) if alone is not None else 0.0)
    slower = max(single, *together.gather(_block(joint, 1, device)))
    steps = together.first(max(int(_BLOCK_SECONDS / max(slower, 1e-6)), 1))
    while True:
        single = _block(alone, steps, device) if alone is not None else 0.0
        single = together.first(single)  # the others wait here while the first rank has the machine to itself
        joined = max(together.gather(_block(joint, steps, device)))  # all are done when the slowest is
        pairs.append((single, joined))
        elapsed = device.now() - started
        plan.progress("comparing", len(pairs), elapsed)
        if together.first(_is_enough(pairs, elapsed, plan)):
            return pairs


def _block(step: Step, steps: int, device: Device) -> float:
    device.wait()  # the CPU waits here: no block may hide behind work the other one queued
    before = device.now()  # the clock runs from here
    for _ in range(steps):
        step()
    device.wait()
    return (device.now() - before) / steps  # the clock ends here


def _is_enough(pairs: list[tuple[float, float]], elapsed: float, plan: Plan) -> bool:
    if len(pairs) < _MIN_PAIRS:
        return False
    ratio, low, high = ratio_interval(pairs)
    is_precise = high / ratio - 1 <= _PRECISION and 1 - low / ratio <= _PRECISION
    return (
        len(pairs) >= _MAX_PAIRS
        or elapsed >= plan.max_seconds
        or (is_precise and elapsed >= plan.min_seconds)
    )
