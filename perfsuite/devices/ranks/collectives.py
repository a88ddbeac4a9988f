"""How long a step is in collectives and how much of that its own work hides; profiled after the window."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from perfsuite.insight import Insight, whole
from perfsuite.statistics import median

_STEPS, _MOST_STEPS = 3, 20
_LOOK_SECONDS = 0.5  # of steps
_SLOW_STEP_SECONDS = 2.0
_RANGE = "perfsuite collectives"
_ON_HOST = "gloo:"  # gloo's threads name what they run like this
_ON_DEVICE = "nccl"  # and NCCL its kernels
_NOT_WORK = (
    "c10d::",
    _RANGE,
    "ProfilerStep",
    "DistributedDataParallel.forward",
)  # calls and ranges around work


class Seen(NamedTuple):
    """One thing the profiler saw, in seconds."""

    name: str
    start: float
    end: float
    is_on_device: bool


def inspect(step: Callable[[], object], step_seconds: float, steps: int, *, is_cuda: bool) -> Insight:
    """Profile so many steps, as many on every rank, and hold what was seen against the timed step."""
    return split(_profile(step, steps, is_cuda), step_seconds)


def steps_of(step_seconds: float) -> int:
    """Return how many steps are looked at: one of long ones, of short ones so many that a burst is one."""
    if step_seconds >= _SLOW_STEP_SECONDS:
        return 1
    wanted = round(_LOOK_SECONDS / step_seconds) if step_seconds > 0 else _MOST_STEPS
    return min(max(wanted, _STEPS), _MOST_STEPS)


class Look(NamedTuple):
    """One profiled stretch of steps, as shares of its length."""

    communicating: float
    exposed: float
    working: float


def split(seen: Sequence[Seen], step_seconds: float) -> Insight:
    """Return seconds in collectives a step, the share of them hidden, and where the step's time went.

    Of several stretches the middle one counts: another process's turn reaches some of them. Profiled steps
    are longer than others, so what was seen is taken as a share and told of the timed step.
    """
    stretches = [one for one in seen if one.name == _RANGE and not one.is_on_device and one.end > one.start]
    if not stretches:
        return Insight()
    looks = [_look(stretch, seen) for stretch in stretches]
    communicating, exposed, working = (median([look[i] for look in looks]) for i in range(3))
    figures = {
        "collective_seconds": communicating * step_seconds,
        "collective_exposed_seconds": exposed * step_seconds,
    }
    if communicating > 0:
        figures["collective_hidden_share"] = 1 - exposed / communicating
    clues = {"collective_exposed_share": min(exposed, 1.0)}
    return Insight(figures, whole({"collectives": exposed, "kernels": working}), clues)


def _look(stretch: Seen, seen: Sequence[Seen]) -> Look:
    inside = [
        one._replace(start=max(one.start, stretch.start), end=min(one.end, stretch.end))
        for one in seen
        if one.start < stretch.end and one.end > stretch.start
    ]
    has_device = any(one.is_on_device for one in inside)
    collectives = _union(one for one in inside if _is_collective(one))
    work = _union(one for one in inside if _is_work(one, has_device))
    length, communicating = stretch.end - stretch.start, _length(collectives)
    exposed = communicating - _overlap(collectives, work)
    return Look(communicating / length, exposed / length, _length(work) / length)


def _is_collective(one: Seen) -> bool:
    return one.name.startswith(_ON_DEVICE) if one.is_on_device else one.name.startswith(_ON_HOST)


def _is_work(one: Seen, has_device: bool) -> bool:
    """Tell whether something computes: kernels where there is a device, else the host's operators."""
    if _is_collective(one) or one.name.startswith(_NOT_WORK):
        return False
    return one.is_on_device == has_device


def _union(seen: Iterable[Seen]) -> list[tuple[float, float]]:
    """Return the stretches in which at least one of them runs."""
    merged: list[tuple[float, float]] = []
    for one in sorted(seen, key=lambda each: each.start):
        if merged and one.start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], one.end))
        else:
            merged.append((one.start, one.end))
    return merged


def _length(stretches: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in stretches)


def _overlap(these: Sequence[tuple[float, float]], those: Sequence[tuple[float, float]]) -> float:
    total, i, j = 0.0, 0, 0
    while i < len(these) and j < len(those):
        total += max(min(these[i][1], those[j][1]) - max(these[i][0], those[j][0]), 0.0)
        if these[i][1] <= those[j][1]:
            i += 1
        else:
            j += 1
    return total


def _profile(step: Callable[[], object], steps: int, is_cuda: bool) -> list[Seen]:
    import torch

    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU]
    if is_cuda:
        kinds.append(profiler.ProfilerActivity.CUDA)
    schedule = profiler.schedule(wait=0, warmup=1, active=1)  # without a warm-up the first events are skewed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own
        with profiler.profile(activities=kinds, schedule=schedule, acc_events=True) as seen:
            step()
            _wait(torch, is_cuda)
            seen.step()
            # A card works on when the host has gone on: there one stretch holds all steps and the wait.
            for count in [steps] if is_cuda else [1] * steps:
                with profiler.record_function(_RANGE):
                    for _ in range(count):
                        step()
                    _wait(torch, is_cuda)  # the CPU waits here: the range must hold all of the kernels
    cpu = torch._C._autograd.DeviceType.CPU
    return [
        Seen(event.name, event.time_range.start / 1e6, event.time_range.end / 1e6, event.device_type != cpu)
        for event in seen.events()
        if event.device_type == cpu or not getattr(event, "is_user_annotation", False)
    ]


def _wait(torch: Any, is_cuda: bool) -> None:
    if is_cuda:
        torch.cuda.synchronize()
