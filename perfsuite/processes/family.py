"""Which processes belong to one run: it starts some to measure for it, and all of them stay on the card."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from perfsuite.processes.world import without_ranks

FAMILY = "PERFSUITE_FAMILY"  # "4711:2": the id of the run's first process, and how many may be on one card


class Kin(Protocol):
    """The processes that are our own."""

    @property
    def size(self) -> int: ...  # noqa: D102
    def includes(self, pid: int, /) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class Family:
    """The first process of a run and all that descend from it."""

    root: int
    size: int = 1  # how many of them may be on one card; ids of another namespace can only be counted
    _known: dict[int, bool] = field(
        default_factory=dict, compare=False
    )  # a card is looked at again and again

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Family":
        """Read what the run that started this process said; alone without one, or where it is no ancestor."""
        env = os.environ if environment is None else environment
        root, _, size = env.get(FAMILY, "").partition(":")
        if root.isdigit() and size.isdigit() and int(root) in _line_of(os.getpid()):
            return cls(int(root), max(int(size), 1))
        return cls(os.getpid())

    def includes(self, pid: int) -> bool:
        """Tell whether a process is of this family; asks the system once for each."""
        if pid not in self._known:
            self._known[pid] = self.root in _line_of(pid)
        return self._known[pid]


def _line_of(pid: int) -> set[int]:
    """Return a process and its ancestors; nobody's if it is gone, or an id of another namespace."""
    import psutil

    try:
        return {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
    except psutil.Error:
        return {pid} if pid == os.getpid() else set()


def for_children(environment: Mapping[str, str], count: int = 1) -> dict[str, str]:
    """Return the environment of so many processes that measure for this one."""
    mine = Family.from_environment(environment)
    return {**without_ranks(environment), FAMILY: f"{mine.root}:{mine.size + count}"}
