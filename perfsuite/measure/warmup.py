"""Run steps until they are steady: no compiling, no new memory, no longer getting faster."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perfsuite.devices import Device
from perfsuite.processes.world import ALONE, Together
from perfsuite.statistics import median

_STILL_FASTER = 0.05  # the later half being this much faster than the earlier is still warming up
_MIN_STEPS = 3  # CUDA graphs warm up, record and only then replay
_SLOW_STEP_SECONDS = 0.5


@dataclass(frozen=True)
class Warmup:
    """How many steps it took, and what to say if it never became steady."""

    steps: int
    notes: tuple[str, ...] = ()


def warm_up(
    run: Callable[[], Any],
    device: Device,
    budget_seconds: float,
    progress: Callable[[str, int, float], None] = lambda *_: None,
    together: Together = ALONE,
) -> Warmup:
    """Run and time steps until they are steady or the budget is spent."""
    seconds: list[float] = []
    settled_at = 0
    state = device.state()
    started = device.now()
    while True:
        progress("warm-up", len(seconds), device.now() - started)
        before = device.now()
        run()
        device.wait()  # the CPU waits here: warm-up steps are timed one by one
        seconds.append(device.now() - before)
        if (now := device.state()) != state:
            state, settled_at = now, len(seconds)
        if together.first(is_steady(seconds[settled_at:])):
            return Warmup(len(seconds))
        is_spent = device.now() - started >= budget_seconds and len(seconds) >= _MIN_STEPS
        if together.first(is_spent):
            return Warmup(len(seconds), (f"not steady after {len(seconds)} warm-up steps",))


def is_steady(seconds: Sequence[float]) -> bool:
    """Tell whether the last steps are no faster than those before them."""
    if len(seconds) < _MIN_STEPS:
        return False
    span = 2 if seconds[-1] >= _SLOW_STEP_SECONDS else 5
    if len(seconds) < 2 * span:
        return False
    later, earlier = median(seconds[-span:]), median(seconds[-2 * span : -span])
    return later >= (1 - _STILL_FASTER) * earlier
