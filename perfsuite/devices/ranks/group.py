"""Join the processes that torchrun started: the process group, and how all ranks agree.

They agree through torch's key-value store, not through collectives: it needs no device, works while a
collective hangs, and every wait has a timeout.
"""

import contextlib
import os
import pickle
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from perfsuite.errors import RanksApart
from perfsuite.processes.world import ENDING, Place

_PERIOD_SECONDS = 0.5
_END = "end"
EXIT_CODE = 3  # pytest's code for an internal error: nothing was decided
_LONG_SECONDS = 24 * 3600.0  # the first rank judges and saves; RankWatch checks that it is alive


class RankWatch:
    """Send heartbeats, check those of other ranks, and exit when a rank ends the run or stops sending.

    The first rank checks all, the others check the first: that is enough for one failure to stop all ranks.
    """

    def __init__(self, place: Place, store: Any, silence_seconds: float) -> None:
        self._place = place
        self._store = store
        self._silence = silence_seconds
        # pytest captures the process's output while a test runs; this copy of stderr is opened before.
        self._out = os.fdopen(os.dup(2), "w", encoding="utf-8")
        self._parent = os.getppid()
        self._stopped = threading.Event()
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._thread = threading.Thread(target=self._run, name="perfsuite-rank-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Sign off: from now on a missing heartbeat means nothing."""
        self._stopped.set()
        self._thread.join()
        with contextlib.suppress(dist.DistError):
            self._store.set(self._beat(self._place.rank), "gone")
        self._out.close()

    def end_all(self, why: str) -> None:
        """Show the reason, notify the other ranks, and exit this process."""
        self._show(f"{why}\nperfsuite: all {self._place.size} ranks stop here; no baseline was stored")
        if ENDING in os.environ:  # the process that started the ranks reports it
            with contextlib.suppress(OSError), open(os.environ[ENDING], "x", encoding="utf-8") as file:
                file.write(why)
        with contextlib.suppress(dist.DistError):
            self._store.set(_END, str(self._place.rank))
            # The others read it within a period; if this process exited now, torchrun would kill them first.
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
                self._exit("the process that keeps the ranks' store is gone")
            if silent is not None:
                self.end_all(f"rank {silent} has sent no heartbeat for {self._silence:g} s")
            if os.getppid() != self._parent:
                self._exit("the process that started the ranks is gone")

    def _silent(self) -> int | None:
        """Return a rank whose heartbeat has been missing for too long."""
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

    def _exit(self, why: str) -> None:
        self._show(f"rank {self._place.rank} stops: {why}")
        os._exit(EXIT_CODE)

    def _show(self, text: str) -> None:
        self._out.write(f"\n{text}\n")
        self._out.flush()

    @staticmethod
    def _beat(rank: int) -> str:
        return f"beat/{rank}"


class Ranks:
    """Communication between the ranks; all must call the same methods in the same order."""

    def __init__(self, place: Place, device: str, timeout_seconds: float, backend: str = "gloo") -> None:
        self.place = place
        self._timeout = timeout_seconds
        self._calls = 0
        if device.startswith("cuda"):
            torch.cuda.set_device(torch.device(device))
        try:
            store = _join(place, device, timeout_seconds, backend)
        except (dist.DistError, ValueError) as error:
            raise RanksApart(
                f"rank {place.rank} could not join the other {place.size - 1}: {_first_line(error)}; start "
                "all of them with one torchrun command, or with the same --rdzv-endpoint on every machine"
            ) from None
        self._store: Any = c10d.PrefixStore("perfsuite", store)
        self._watch = RankWatch(place, c10d.PrefixStore("perfsuite-watch", store.clone()), timeout_seconds)

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.place.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.place.size

    def first(self, value: Any, *, is_long: bool = False) -> Any:
        """Return the first rank's value; the others wait for it."""
        key = self._key("first")
        if self.place.is_first:
            self._store.set(key, _packed(value))
            return value
        return self._read(key, "rank 0", _LONG_SECONDS if is_long else self._timeout)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return any(self.gather(flag))

    def gather(self, value: Any, *, is_long: bool = False) -> list[Any]:
        """Return the values of all ranks, in their order."""
        key, limit = self._key("all"), _LONG_SECONDS if is_long else self._timeout
        self._store.set(f"{key}/{self.rank}", _packed(value))
        if self.place.is_first:
            values = [self._read(f"{key}/{rank}", f"rank {rank}", limit) for rank in range(self.size)]
            self._store.set(key, _packed(values))
            return values
        return list(self._read(key, "rank 0", 2 * limit))  # it waits for the others first

    def meet(self, where: str, failure: str, grace_seconds: float) -> list[tuple[int, str]]:
        """Wait for all ranks at the end of a phase and return the failures, the earliest first.

        A rank that failed leaves the others in a collective it never joins: they get a short grace period to
        return by themselves, then the failure is shown and all processes exit.
        """
        key = self._key("meet")
        order = self._store.add(f"{key}/failed", 1) if failure else 0
        self._store.set(f"{key}/{self.rank}", _packed((order, failure)))
        reports = []
        for rank in range(self.size):
            limit = grace_seconds if failure else self._timeout
            try:
                reports.append((rank, *self._read(f"{key}/{rank}", f"rank {rank}", limit)))
            except RanksApart as error:
                cause = f"rank {self.rank} failed:\n{failure}\n" if failure else ""
                self._watch.end_all(f"{cause}{error} ({where}): it is gone, busy, or waits in a collective")
        failed = sorted((order, rank, text) for rank, order, text in reports if text)
        return [(rank, text) for _, rank, text in failed]

    def leave(self) -> None:
        """Stop the watch and destroy the process group; no other rank waits for one that has left."""
        self._watch.stop()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _key(self, what: str) -> str:
        self._calls += 1
        return f"{what}/{self._calls}"

    def _read(self, key: str, who: str, seconds: float) -> Any:
        try:
            self._store.wait([key], timedelta(seconds=seconds))
            return pickle.loads(self._store.get(key))
        except dist.DistError:
            raise RanksApart(
                f"{who} did not respond within {seconds:g} s; --perf-rank-timeout sets how long ranks wait"
            ) from None


def _join(place: Place, device: str, timeout_seconds: float, backend: str) -> Any:
    """Initialise the default process group unless the project has done so; return its store."""
    limit = timedelta(seconds=max(timeout_seconds, 60.0))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # one store serves all restarts
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=limit)))  # type: ignore[attr-defined]
    if not dist.is_initialized():
        dist.init_process_group(
            backend,
            store=c10d.PrefixStore(f"perfsuite-group-{attempt}", store),
            rank=rank,
            world_size=size,
            device_id=torch.device(device) if "nccl" in backend else None,
        )
    if (dist.get_rank(), dist.get_world_size()) != (place.rank, place.size):
        raise RanksApart("the project's process group numbers its ranks differently from torchrun")
    return store


def _packed(value: Any) -> Any:
    # Pickled as in torch's object collectives: ranks are one program, and any process that reaches the
    # store could join it anyway.
    return pickle.dumps(value)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
