"""What processes did on an emulated card: read from the files they leave, names as a person reads them."""

import ctypes
import ctypes.util
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from perfsuite.units import Unit, show

KINDS = (
    "kernel",
    "library",
    "memset",
    "h2d",
    "d2h",
    "d2d",
    "h2h",
)  # in the library's order: what a card does
HOST_KINDS = ("graph", "sync", "alloc", "free", "host_alloc", "refused")  # and what its host does
_TITLES = {
    "kernel": "kernels",
    "library": "calls of cuBLAS and cuDNN, a kernel each",
    "memset": "memsets",
    "h2d": "copies to the card",
    "d2h": "copies to the host",
    "d2d": "copies within the card",
    "h2h": "copies within the host",
    "graph": "graph launches",
    "sync": "host syncs",
    "alloc": "allocations",
    "free": "frees",
    "host_alloc": "allocations of pinned memory",
}
_LONGEST = 150


class Count(NamedTuple):
    """One kind of thing by its name: how often, and with how many bytes (of a graph: nodes)."""

    kind: str
    name: str
    times: int
    size: int
    pageable: bool = False
    blocking: bool = False


def read_counts(folder: Path) -> list[Count]:
    """Return what all processes of a run did together; a process that was killed left nothing."""
    times: Counter[tuple[str, str, bool, bool]] = Counter()
    sizes: Counter[tuple[str, str, bool, bool]] = Counter()
    for path in sorted(folder.glob("counts-*")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            kind, count, size, pageable, blocking, name = line.split("\t", 5)
            key = (kind, name, pageable == "1", blocking == "1")
            times[key] += int(count)
            sizes[key] += int(size)
    return [
        Count(kind, name, count, sizes[kind, name, pageable, blocking], pageable, blocking)
        for (kind, name, pageable, blocking), count in times.items()
    ]


def render_counts(counts: Sequence[Count]) -> str:
    """Return a table: kinds in order, under each its names, the most frequent first."""
    if not counts:
        return "nothing was done on the emulated GPU"
    lines: list[str] = []
    for kind, title in _TITLES.items():
        ones = sorted((c for c in counts if c.kind == kind), key=lambda c: (-c.times, c.name))
        if not ones:
            continue
        size = _size(kind, sum(one.size for one in ones))
        lines.append(f"{sum(one.times for one in ones):>10,}  {title}{size}")
        if len(ones) > 1 or kind != "memset":
            lines += [f"{one.times:>10,}    {_short(one.name)}{_size(kind, one.size)}" for one in ones]
    return "\n".join(lines)


def _size(kind: str, size: int) -> str:
    if not size:
        return ""
    return f", {size:,} nodes" if kind == "graph" else f", {show(size, Unit.BYTES)}"


def render_refused(counts: Iterable[Count]) -> str:
    """Name the functions that were called and that the emulated GPU does not have; "" without any."""
    refused = sorted((one for one in counts if one.kind == "refused"), key=lambda one: (-one.times, one.name))
    if not refused:
        return ""
    names = ", ".join(f"{one.name} ({one.times}×)" if one.times > 1 else one.name for one in refused)
    return f"the emulated GPU does not have, and refused: {names}"


def _short(name: str) -> str:
    readable = demangle(name)
    return readable if len(readable) <= _LONGEST else f"{readable[: _LONGEST - 1]}…"


@cache
def demangle(name: str) -> str:
    """Return a C++ name as it is written; others, and all where there is no C++ library, as they are."""
    library = _cxx()
    if library is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    library.__cxa_demangle.restype = ctypes.c_void_p
    address = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value or not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    _free(address)
    return text


@cache
def _cxx() -> Any:
    try:
        return ctypes.CDLL(ctypes.util.find_library("stdc++") or "libstdc++.so.6")
    except OSError:
        return None


def _free(address: int) -> None:
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free.restype = None
    free(address)
