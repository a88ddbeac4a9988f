"""The emulator's library inside this process: its totals, its table of durations, and who listens to it."""

import ctypes
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from perfsuite.devices.emulated.counts import HOST_KINDS, KINDS, Count, read_counts
from perfsuite.errors import DeviceMissing

ALL_KINDS = (*KINDS, *HOST_KINDS)
_PAGEABLE, _BLOCKING, _IN_GRAPH = 1, 2, 4
_Callback = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint32), ctypes.c_int
)


class Call(NamedTuple):
    """One thing that was just given to the card, or that the host did there."""

    kind: str
    name: str  # as the library has it: C++ names are mangled
    size: int  # bytes; nodes of a graph
    shape: tuple[int, ...]  # grid and block; of a library call the sizes of its problem
    is_pageable: bool = False
    is_blocking: bool = False
    is_in_graph: bool = False


class Runtime:
    """The library this process runs on, as far as perfsuite uses it."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(None)
        if not hasattr(self._library, "perfsuite_emulated_watch"):
            raise DeviceMissing(
                "this process was not started on an emulated GPU; start it by "
                "python -m perfsuite emulate a10 -- …, or let pytest do so: --perf-device=emulated:a10"
            )
        self._library.perfsuite_emulated_learn.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_uint64,
        ]

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return how often each kind of thing was done so far, and with how many bytes."""
        counts, sizes = ((ctypes.c_uint64 * len(ALL_KINDS))() for _ in range(2))
        self._library.perfsuite_emulated_totals(counts, sizes)
        return {kind: (counts[i], sizes[i]) for i, kind in enumerate(ALL_KINDS)}

    def learn(self, kind: str, name: str, shape: tuple[int, ...], seconds: float) -> None:
        """Let a kernel of that name and geometry take so long from now on."""
        numbers = (ctypes.c_uint32 * 6)(*shape)
        nanoseconds = max(round(1e9 * seconds), 1)
        self._library.perfsuite_emulated_learn(ALL_KINDS.index(kind), name.encode(), numbers, nanoseconds)

    @contextmanager
    def watched(self, listener: Callable[[Call], None]) -> Iterator[None]:
        """Call the listener for everything that is done within the context, in the thread that does it."""

        def pass_on(kind: int, name: bytes, size: int, shape: Any, flags: int) -> None:
            listener(
                Call(
                    ALL_KINDS[kind],
                    name.decode(errors="replace"),
                    size,
                    tuple(shape[:6]),
                    bool(flags & _PAGEABLE),
                    bool(flags & _BLOCKING),
                    bool(flags & _IN_GRAPH),
                )
            )

        callback = _Callback(pass_on)
        self._library.perfsuite_emulated_watch(callback)
        try:
            yield
        finally:
            self._library.perfsuite_emulated_watch(None)

    def counts(self) -> list[Count]:
        """Return what this process did so far, by name."""
        with tempfile.TemporaryDirectory() as folder:
            self._library.perfsuite_emulated_write(str(Path(folder) / "counts-0").encode())
            return read_counts(Path(folder))
