"""What must hold before a window opens: nobody else on the card, room in its memory; and what is told."""

import os
from collections.abc import Callable, Sequence

from perfsuite.devices.card import Card, Memory
from perfsuite.devices.looks import Seen, foreigners
from perfsuite.units import Unit, show

_MIN_FREE_SHARE = 0.5  # of the card, what this process itself holds counted as free


def look_before(card: Card, own_bytes: float, is_ours: Callable[[int], bool] | None) -> Seen:
    """Check a card before measuring; `own_bytes` is what this process has reserved on it."""
    persistent, sliced, limit = card.is_persistent(), card.is_sliced(), card.power_limit()
    conditions = {
        "power_limit_watts": limit,
        "max_sm_clock_mhz": card.max_sm_clock(),
        "mig": None if sliced is None else float(sliced),
    }
    notes = []
    if persistent is False:
        notes.append("persistence mode is off: the driver may unload between runs (nvidia-smi -pm 1)")
    if sliced:
        notes.append("MIG is on: NVML tells no utilization of a slice, and its memory is the slice's")
    company, told = _company(card.processes(), is_ours) if is_ours else ("", "")
    invalid = (company, _crowded(card.memory(), own_bytes))
    return Seen(
        conditions={name: value for name, value in conditions.items() if value is not None},
        notes=(*notes, *((told,) if told else ())),
        invalid=tuple(reason for reason in invalid if reason),
    )


def _company(processes: Sequence[int] | None, is_ours: Callable[[int], bool]) -> tuple[str, str]:
    """Return what makes the window worthless, and what only is told."""
    if processes is None:
        return "", "processes on the GPU cannot be seen here: nobody knows whether it is shared"
    if not processes:
        return "", "NVML shows no process, not even this one: nobody knows whether the GPU is shared"
    foreign = foreigners(processes, is_ours)
    if not foreign:
        return "", ""
    who = "another process is" if foreign == 1 else f"{foreign} other processes are"
    return f"{who} on the GPU before the measurement begins", ""


def _crowded(memory: Memory | None, own_bytes: float) -> str:
    """Say when somebody else holds most of the card's memory."""
    if memory is None or memory.total <= 0 or memory.free + own_bytes >= _MIN_FREE_SHARE * memory.total:
        return ""
    free, total = show(memory.free, Unit.BYTES), show(memory.total, Unit.BYTES)
    return f"only {free} of the GPU's {total} are free, and this process holds {show(own_bytes, Unit.BYTES)}"


def is_ours(pid: int) -> bool:
    """Tell whether a process is this one or one of its children."""
    if pid == os.getpid():
        return True
    import psutil

    try:
        return any(parent.pid == os.getpid() for parent in psutil.Process(pid).parents())
    except psutil.Error:  # gone, somebody else's, or an id of another namespace
        return False
