"""What must hold before a window opens: nobody else on the card, room in its memory; and what is told."""

from collections.abc import Sequence

from perfsuite.devices.cuda.card import Card, Memory, Process
from perfsuite.devices.cuda.window_checks import Seen, foreigners
from perfsuite.processes.family import Kin
from perfsuite.units import Unit, show

_MIN_FREE_SHARE = 0.5  # of the card, what our own processes hold counted as free


def look_before(card: Card, own_bytes: float, kin: Kin | None) -> Seen:
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
    processes = card.processes() if kin else None
    company, told = _company(processes, kin) if kin else ("", "")
    # The run that started this process keeps its context, and what it has cached.
    of_kin = sum(one.used_bytes or 0.0 for one in processes or () if kin and kin.includes(one.pid))
    invalid = (company, _crowded(card.memory(), max(own_bytes, of_kin)))
    return Seen(
        conditions={name: value for name, value in conditions.items() if value is not None},
        notes=(*notes, *((told,) if told else ())),
        invalid=tuple(reason for reason in invalid if reason),
    )


def _company(processes: Sequence[Process] | None, kin: Kin) -> tuple[str, str]:
    """Return what makes the window worthless, and what only is told."""
    if processes is None:
        return "", "processes on the GPU cannot be seen here: nobody knows whether it is shared"
    if not processes:
        return "", "NVML shows no process, not even this one: nobody knows whether the GPU is shared"
    foreign = foreigners(processes, kin)
    if not foreign:
        return "", ""
    who = "another process is" if foreign == 1 else f"{foreign} other processes are"
    return f"{who} on the GPU before the measurement begins", ""


def _crowded(memory: Memory | None, own_bytes: float) -> str:
    """Say when somebody else holds most of the card's memory."""
    if memory is None or memory.total <= 0 or memory.free + own_bytes >= _MIN_FREE_SHARE * memory.total:
        return ""
    free, total = show(memory.free, Unit.BYTES), show(memory.total, Unit.BYTES)
    return f"only {free} of the GPU's {total} are free, and this run holds {show(own_bytes, Unit.BYTES)}"
