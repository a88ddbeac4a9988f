"""One rank against all of them, block by block in turns: the scaling efficiency and its interval."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from perfsuite.devices import Device
from perfsuite.errors import UnusableStep
from perfsuite.measure.step import Plan, measure_step, quiet_garbage
from perfsuite.measure.warmup import warm_up
from perfsuite.processes.world import Alone, Together
from perfsuite.records import Reading
from perfsuite.statistics import median, ratio_interval

_MIN_PAIRS = 6
_MOST_PAIRS = 60
_PRECISION = 0.03  # stop when the interval is this narrow to each side
_BLOCK_SECONDS = 0.2
MODES = ("weak", "strong")

Step = Callable[[], Any]


def measure_scaling(
    build: Callable[[Together], Step],
    device: Device,
    plan: Plan,
    *,
    samples_per_step: int,
    mode: str,
    name: str = "",
) -> Reading:
    """Measure the training of all ranks; how it scales is judged in turns with one rank's alone.

    The first rank runs alone while the others wait without computing: what they would take from it (cores,
    memory bandwidth, a shared bus) is part of what scaling costs.
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
    with quiet_garbage():
        if alone is not None:
            warm_up(alone, device, plan.max_seconds / 2, plan.progress)
        pairs = _interleave(alone, joint, device, plan)
    ratio, low, high = ratio_interval(pairs)
    ideal = 1.0 if mode == "weak" else float(together.size)
    return replace(
        reading,
        kind="scaling",
        scaling_efficiency=ratio / ideal,
        scaling_efficiency_low=low / ideal,
        scaling_efficiency_high=high / ideal,
        reported={
            **reading.reported,
            "one_rank_step_seconds": median([one for one, _ in pairs]),
            "joint_step_seconds": median([joined for _, joined in pairs]),
        },
    )


def _interleave(alone: Step | None, joint: Step, device: Device, plan: Plan) -> list[tuple[float, float]]:
    """Time blocks of one rank and of all in turns; every rank returns the same pairs."""
    together, started, pairs = plan.together, device.now(), []
    # As many steps in a block as the slower of both allows: single ones are too short for two processes.
    own = together.first(_block(alone, 1, device) if alone is not None else 0.0)
    slower = max(own, *together.gather(_block(joint, 1, device)))
    steps = together.first(max(int(_BLOCK_SECONDS / max(slower, 1e-6)), 1))
    while True:
        own = _block(alone, steps, device) if alone is not None else 0.0
        own = together.first(own)  # the others wait here while one rank has the machine to itself
        joined = max(together.gather(_block(joint, steps, device)))  # all are done when the slowest is
        pairs.append((own, joined))
        elapsed = device.now() - started
        plan.progress("comparing", len(pairs), elapsed)
        if together.first(_is_enough(pairs, elapsed, plan)):
            return pairs


def _block(step: Step, steps: int, device: Device) -> float:
    device.wait()  # the CPU waits here: no block may hide behind the other's queued work
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
        len(pairs) >= _MOST_PAIRS
        or elapsed >= plan.max_seconds
        or (is_precise and elapsed >= plan.min_seconds)
    )
