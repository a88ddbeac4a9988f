"""Run steps under torch's profiler and read the events it recorded."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

RANGE = "perfsuite inspection"
_CALLS = ("cuda_runtime", "cuda_driver")  # Kineto's kinds of calls, on ROCm as well
_CALL_PREFIXES = ("cuda", "cu", "hip")


class Interval(NamedTuple):
    """An event of the profiler, in microseconds."""

    name: str
    start: float
    end: float
    is_on_device: bool
    id: int = 0  # the correlation id: a call of the runtime and the work it started share it
    is_call: bool = False  # of the CUDA runtime or driver; operators are numbered independently of these


def profile(
    torch: Any,
    step: Callable[[], object],
    ranges: Sequence[int],
    wait: Callable[[], None],
    *,
    with_device: bool,
    warmup_steps: int = 1,
) -> list[Interval]:
    """Profile steps, one range of the given number of steps after the other; each ends with a wait."""
    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU]
    if with_device:
        kinds.append(profiler.ProfilerActivity.CUDA)
    schedule = profiler.schedule(wait=0, warmup=1, active=1)  # without a warm-up the first events are skewed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the profiler
        with profiler.profile(activities=kinds, schedule=schedule) as recorded:
            for _ in range(warmup_steps):
                step()
            wait()
            recorded.step()
            for count in ranges:
                with profiler.record_function(RANGE):
                    for _ in range(count):
                        step()
                    wait()  # the CPU waits here: the range must contain all kernels
    return list(_intervals(torch, recorded.profiler.kineto_results))


def _intervals(torch: Any, results: Any) -> Iterator[Interval]:
    """Read Kineto's own events: torch's `events()` links all to each other, which takes 15 times as long."""
    cpu, began = torch.autograd.DeviceType.CPU, results.trace_start_ns()
    for event in results.events():
        is_on_device = event.device_type() != cpu
        if is_on_device and event.is_user_annotation():
            continue  # a range around the steps is shown on the device too, and is not a kernel
        name = event.name()
        yield Interval(
            name,
            (event.start_ns() - began) / 1e3,
            (event.end_ns() - began) / 1e3,
            is_on_device,
            event.correlation_id(),
            not is_on_device and _is_call(event, name),
        )


def _is_call(event: Any, name: str) -> bool:
    """Return whether the host called the runtime; Kineto has no name for calls newer than itself."""
    kind = getattr(event, "activity_type", None)
    if kind is not None:
        return kind() in _CALLS
    # Before torch said what an event is: calls are linked to the operator that made them.
    return event.linked_correlation_id() > 0 or name.startswith(_CALL_PREFIXES)
