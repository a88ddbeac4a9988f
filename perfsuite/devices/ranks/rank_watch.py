"""A thread of every rank that notices a dead one and ends the process, whatever it hangs in."""

import contextlib
import os
import threading
import time
from typing import Any

import torch.distributed as dist

from perfsuite.processes.world import ENDING, Place

_PERIOD_SECONDS = 0.5
_END = "end"
EXIT_CODE = 3  # pytest's word for an internal error: nothing was decided


class RankWatch:
    """Beat, listen to the others' beats, and end when one says so or falls silent.

    The first rank listens to all, the others to the first: that is enough for one silence to end everybody.
    """

    def __init__(self, place: Place, store: Any, silence_seconds: float) -> None:
        self._place = place
        self._store = store
        self._silence = silence_seconds
        # pytest captures the process's output while a test runs; this way out is opened before.
        self._out = os.fdopen(os.dup(2), "w", encoding="utf-8")
        self._parent = os.getppid()
        self._stopped = threading.Event()
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._thread = threading.Thread(target=self._run, name="perfsuite-rank-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye: from now on silence means nothing."""
        self._stopped.set()
        self._thread.join()
        with contextlib.suppress(dist.DistError):
            self._store.set(self._beat(self._place.rank), "gone")
        self._out.close()

    def end_all(self, why: str) -> None:
        """Show why, tell the others, and end this process."""
        self._show(f"{why}\nperfsuite: all {self._place.size} ranks end here; no baseline was stored")
        if ENDING in os.environ:  # the process that started the ranks reports it
            with contextlib.suppress(OSError), open(os.environ[ENDING], "x", encoding="utf-8") as file:
                file.write(why)
        with contextlib.suppress(dist.DistError):
            self._store.set(_END, str(self._place.rank))
            # The others read it within a period; torchrun would end them before they can.
            time.sleep(3 * _PERIOD_SECONDS)
        os._exit(EXIT_CODE)

    def _run(self) -> None:
        count = 0
        while not self._stopped.wait(_PERIOD_SECONDS):
            count += 1
            try:
                self._store.set(self._beat(self._place.rank), str(count))
                if self._store.check([_END]):
                    os._exit(EXIT_CODE)  # the rank that failed has shown why
                silent = self._silent()
            except dist.DistError:
                self._leave("the process that keeps the ranks' store is gone")
            if silent is not None:
                self.end_all(f"rank {silent} has given no sign of life for {self._silence:g} s")
            if os.getppid() != self._parent:
                self._leave("the process that started the ranks is gone")

    def _silent(self) -> int | None:
        """Return a rank that has not been heard of for too long."""
        others = range(1, self._place.size) if self._place.is_first else (0,)
        now = time.monotonic()
        for rank in others:
            key = self._beat(rank)
            beat = self._store.get(key) if self._store.check([key]) else b""
            before, since = self._heard.get(rank, (None, now))
            if beat != before:
                self._heard[rank] = (beat, now)
            elif beat != b"gone" and now - since > self._silence:
                return rank
        return None

    def _leave(self, why: str) -> None:
        self._show(f"rank {self._place.rank} ends: {why}")
        os._exit(EXIT_CODE)

    def _show(self, text: str) -> None:
        self._out.write(f"\n{text}\n")
        self._out.flush()

    @staticmethod
    def _beat(rank: int) -> str:
        return f"beat/{rank}"
