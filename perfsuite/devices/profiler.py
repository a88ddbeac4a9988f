"""Run steps under torch's profiler and read its events, unless another profiler is at work."""

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


class OtherProfiler(Exception):
    """A profiler beside ours: two at once lose each other's events, or end the process."""


def other_profiler(torch: Any, step: Callable[[], object]) -> str:
    """Run a step and return which other profiler is at work, "" if there is none."""
    if torch.autograd._profiler_enabled() or _any_warming_up(torch):
        step()
        return "a profiler is active around the test"
    uses: list[None] = []
    with _uses_of_profilers(torch, lambda: uses.append(None)):
        step()
    return "the step uses a profiler itself" if uses else ""


def _any_warming_up(torch: Any) -> bool:
    """Return whether a profiler waits for its first recorded step, of which torch does not tell."""
    kind, warmup = torch.profiler.profile, torch.profiler.ProfilerAction.WARMUP
    return any(
        issubclass(type(thing), kind) and thing.current_action == warmup and _is_open(thing.profiler)
        for thing in gc.get_objects()  # no `isinstance` above: proxies answer it
    )


def _is_open(inner: Any) -> bool:
    """Return whether a profiler was entered and not left: others wait for the garbage collector."""
    return inner is not None and inner.entered and inner.kineto_results is None


@contextmanager
def _uses_of_profilers(torch: Any, notice: Callable[[], None]) -> Iterator[None]:
    """Call `notice` before a profiler is prepared, started, or moved on by a step."""
    start = torch.autograd.profiler
    places = [(start, "_prepare_profiler"), (start, "_enable_profiler"), (torch.profiler.profile, "step")]
    originals = [getattr(owner, name) for owner, name in places]

    def noticed(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            notice()
            return original(*arguments, **options)

        return call

    for (owner, name), original in zip(places, originals, strict=True):
        setattr(owner, name, noticed(original))
    try:
        yield
    finally:
        for (owner, name), original in zip(places, originals, strict=True):
            setattr(owner, name, original)


def _refuse() -> None:
    raise OtherProfiler("the step uses a profiler itself")


def profile(
    torch: Any,
    step: Callable[[], object],
    ranges: Sequence[int],
    wait: Callable[[], None],
    *,
    with_device: bool,
    warmup_steps: int = 1,
) -> list[Interval]:
    """Profile steps, one range of the given number of steps after the other; each ends with a wait.

    A step that uses a profiler is stopped by an OtherProfiler.
    """

    def run() -> None:
        with _uses_of_profilers(torch, _refuse):
            step()

    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU]
    if with_device:
        kinds.append(profiler.ProfilerActivity.CUDA)
    schedule = profiler.schedule(wait=0, warmup=1, active=1)  # without a warm-up the first events are skewed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the profiler
        with profiler.profile(activities=kinds, schedule=schedule) as recorded:
            for _ in range(warmup_steps):
                run()
            wait()
            recorded.step()
            for count in ranges:
                with profiler.record_function(RANGE):
                    for _ in range(count):
                        run()
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
