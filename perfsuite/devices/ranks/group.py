"""The processes that torchrun started, joined: the process group, and what all of them agree on.

Agreement goes through torch's own key-value store, not through collectives: it needs no device, works while a
collective hangs, and every wait has an end.
"""

import os
import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from perfsuite.devices.ranks.rank_watch import RankWatch
from perfsuite.errors import RanksApart
from perfsuite.processes.world import Place

_LONG_SECONDS = 24 * 3600.0  # the first rank judges and saves; that it is alive is the watch's business


class Ranks:
    """All ranks as one: whoever calls a method, all must, in the same order."""

    def __init__(self, place: Place, device: str, timeout_seconds: float) -> None:
        self.place = place
        self._timeout = timeout_seconds
        self._calls = 0
        if device.startswith("cuda"):
            torch.cuda.set_device(torch.device(device))
        try:
            store = _join(place, device, timeout_seconds)
        except (dist.DistError, ValueError) as error:
            raise RanksApart(
                f"rank {place.rank} could not join the other {place.size - 1}: {_first_line(error)}; start "
                "all of them with one torchrun command, or with the same --rdzv-endpoint on every machine"
            ) from None
        self._store: Any = c10d.PrefixStore("perfsuite", store)
        self._watch = RankWatch(place, c10d.PrefixStore("perfsuite-watch", store.clone()), timeout_seconds)

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.place.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.place.size

    def first(self, value: Any, *, is_long: bool = False) -> Any:
        """Return the word of the first rank; the others wait for it."""
        key = self._key("first")
        if self.place.is_first:
            self._store.set(key, _packed(value))
            return value
        return self._read(key, "rank 0", _LONG_SECONDS if is_long else self._timeout)

    def any(self, flag: bool) -> bool:
        """Tell whether any rank says so."""
        return any(self.gather(flag))

    def gather(self, value: Any, *, is_long: bool = False) -> list[Any]:
        """Return what every rank says, in their order."""
        key, limit = self._key("all"), _LONG_SECONDS if is_long else self._timeout
        self._store.set(f"{key}/{self.rank}", _packed(value))
        if self.place.is_first:
            said = [self._read(f"{key}/{rank}", f"rank {rank}", limit) for rank in range(self.size)]
            self._store.set(key, _packed(said))
            return said
        return list(self._read(key, "rank 0", 2 * limit))  # it waits for the others first

    def meet(self, where: str, failure: str, grace_seconds: float) -> list[tuple[int, str]]:
        """Wait for all ranks at the end of a phase and return the failures, the earliest first.

        A rank that failed leaves the others in a collective it never joins: they get a short grace to come
        out by themselves, then all processes end with the failure shown.
        """
        key = self._key("meet")
        order = self._store.add(f"{key}/failed", 1) if failure else 0
        self._store.set(f"{key}/{self.rank}", _packed((order, failure)))
        found = []
        for rank in range(self.size):
            limit = grace_seconds if failure else self._timeout
            try:
                found.append((rank, *self._read(f"{key}/{rank}", f"rank {rank}", limit)))
            except RanksApart as error:
                told = f"{_told(self.rank, failure)}\n" if failure else ""
                self._watch.end_all(f"{told}{error} ({where}): it is gone, busy, or waits in a collective")
        failed = sorted((order, rank, text) for rank, order, text in found if text)
        return [(rank, text) for _, rank, text in failed]

    def leave(self) -> None:
        """Stop watching and take the process group down; nobody waits for a rank that has left."""
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
                f"{who} did not come within {seconds:g} s; --perf-rank-timeout sets how long ranks wait"
            ) from None


def _join(place: Place, device: str, timeout_seconds: float) -> Any:
    """Initialise the default process group unless the project has; return the store behind it."""
    limit = timedelta(seconds=max(timeout_seconds, 60.0))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # one store serves all restarts
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=limit)))  # type: ignore[attr-defined]
    if not dist.is_initialized():
        is_cuda = device.startswith("cuda")
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_cuda else "gloo",
            store=c10d.PrefixStore(f"perfsuite-group-{attempt}", store),
            rank=rank,
            world_size=size,
            device_id=torch.device(device) if is_cuda else None,
        )
    if (dist.get_rank(), dist.get_world_size()) != (place.rank, place.size):
        raise RanksApart("the project's process group numbers its ranks otherwise than torchrun")
    return store


def _packed(value: Any) -> Any:
    # As torch's own object collectives do: ranks are one program, and who reaches their store could join it.
    return pickle.dumps(value)


def _told(rank: int, failure: str) -> str:
    return f"rank {rank} failed:\n{failure}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
