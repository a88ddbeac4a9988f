"""Find which lines of the project hold the memory of a step's peak, from the allocator's own history."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perfsuite.devices.code_lines import UNKNOWN, Place, Places

BEFORE = Place("(allocated before the step)", 0)
_MOST_ENTRIES = 1_000_000


def peak_places(
    torch: Any, index: int, step: Callable[[], object], root: Path, base_bytes: float = 0.0
) -> tuple[dict[str, float], dict[str, int]]:
    """Run one step and return the bytes of its peak above the base by place, and the places' lines."""
    before = float(torch.cuda.memory_allocated(index)) - base_bytes
    record = torch.cuda.memory._record_memory_history
    record("all", context="alloc", stacks="python", max_entries=_MOST_ENTRIES)
    try:
        step()
        torch.cuda.synchronize(index)
        trace = torch.cuda.memory._snapshot(index)["device_traces"][index]
    finally:
        record(None)
    held = at_peak(trace, Places(root))
    bytes_by = {BEFORE.key: before}
    for place, size in held.items():
        bytes_by[place.key] = bytes_by.get(place.key, 0.0) + size
    return bytes_by, {place.key: place.line for place in held}


def at_peak(trace: Iterable[Mapping[str, Any]], places: Places) -> Counter[Place]:
    """Replay a history of allocations and return who holds how much where most is held."""
    alive: dict[int, tuple[int, Place]] = {}
    now = most = 0
    holding: Counter[Place] = Counter()
    at_most: Counter[Place] = Counter()
    for entry in trace:
        if entry["action"] == "alloc":
            place = _place(entry.get("frames", ()), places)
            alive[entry["addr"]] = (entry["size"], place)
            now += entry["size"]
            holding[place] += entry["size"]
            if now > most:
                most, at_most = now, holding.copy()
        elif entry["action"] == "free_completed":
            size, place = alive.pop(entry["addr"], (0, UNKNOWN))
            if not size:
                now -= entry["size"]  # it was there before the step
                continue
            now -= size
            holding[place] -= size
    return +at_most


def _place(frames: Iterable[Mapping[str, Any]], places: Places) -> Place:
    for frame in frames:
        found = places.in_project(frame["filename"], frame["line"], frame["name"])
        if found is not None:
            return found
    return UNKNOWN
