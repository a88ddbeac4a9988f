"""The rank of this process, as torchrun sets it in the environment, and the processes of a run; no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from perfsuite.errors import RanksApart

# Set by torchrun; a process started by a rank must not inherit them, or it would act as a rank itself.
_SET_BY_TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
ENDING = "PERFSUITE_ENDING"  # the path of the file with the reason why all ranks ended early
RUN = "PERFSUITE_RUN"  # "4711:2": the id of the run's first process, and how many may use one GPU


_FIRST_NAMESPACE = "pid:[4026531836]"  # a constant of the kernel: the namespace that sees every process


@dataclass(frozen=True)
class Place:
    """The rank of this process among those that measure together."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Place | None":
        """Read torchrun's variables; None if this process runs alone."""
        env = os.environ if environment is None else environment
        if "RANK" not in env or "WORLD_SIZE" not in env:
            return None
        try:
            rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
            local, local_size = int(env.get("LOCAL_RANK", rank)), int(env.get("LOCAL_WORLD_SIZE", size))
        except ValueError:
            raise RanksApart(
                "RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers; start with torchrun, which sets them"
            ) from None
        if not 0 <= rank < size:
            raise RanksApart(
                f"RANK {rank} is outside WORLD_SIZE {size}; start with torchrun, which sets both"
            )
        return None if size == 1 else cls(rank, size, local, local_size)

    @property
    def is_first(self) -> bool:
        """Return whether this process is the one that judges, reports and stores."""
        return self.rank == 0

    @property
    def is_one_machine(self) -> bool:
        """Return whether all ranks run on this machine."""
        return self.local_size == self.size


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without torchrun's variables, for a child that is not a rank."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _SET_BY_TORCHRUN and not name.startswith("TORCHELASTIC_")
    }


class Together(Protocol):
    """Communication between processes that measure together; values must be JSON-serializable."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102

    def first(self, value: Any) -> Any:
        """Return the first rank's value."""

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""


class Alone:
    """The same interface for a single process."""

    rank, size = 0, 1

    def first(self, value: Any) -> Any:
        """Return the value."""
        return value

    def any(self, flag: bool) -> bool:
        """Return the flag."""
        return flag

    def gather(self, value: Any) -> list[Any]:
        """Return a list with the value."""
        return [value]


ALONE = Alone()


class ProcessSet(Protocol):
    """The processes that belong to this run."""

    @property
    def size(self) -> int: ...  # noqa: D102
    def includes(self, pid: int, /) -> bool: ...  # noqa: D102


@dataclass(frozen=True)
class RunProcesses:
    """The first process of a run and all its descendants."""

    root: int
    size: int = 1  # how many of them may use one GPU; ids from another namespace can only be counted
    _known: dict[int, bool] = field(
        default_factory=dict, compare=False
    )  # cached, as a GPU's processes are checked again and again

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "RunProcesses":
        """Read the run that started this process; without one, or if it is no ancestor, start a new one."""
        env = os.environ if environment is None else environment
        root, _, size = env.get(RUN, "").partition(":")
        if root.isdigit() and size.isdigit() and int(root) in _with_ancestors(os.getpid()):
            return cls(int(root), max(int(size), 1))
        return cls(os.getpid())

    def includes(self, pid: int) -> bool:
        """Return whether a process belongs to this run; the system is queried once per process."""
        if pid not in self._known:
            self._known[pid] = self.root in _with_ancestors(pid)
        return self._known[pid]


def _with_ancestors(pid: int) -> set[int]:
    """Return a process and its ancestors; empty if it is gone, or its id is from another namespace."""
    import psutil

    try:
        return {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
    except psutil.Error:
        return {pid} if pid == os.getpid() else set()


def hides_others(proc: Path = Path("/proc/self")) -> bool:
    """Return whether this process has a pid namespace of its own, which hides the processes outside of it."""
    try:
        numbers = next(
            line.split()[1:]
            for line in (proc / "status").read_text().splitlines()
            if line.startswith("NSpid")
        )
        return os.readlink(proc / "ns" / "pid") != _FIRST_NAMESPACE or len(numbers) > 1
    except (OSError, StopIteration):  # not Linux, or no /proc
        return False


def child_environment(environment: Mapping[str, str], count: int = 1) -> dict[str, str]:
    """Return the environment for `count` processes that measure for this one."""
    run = RunProcesses.from_environment(environment)
    return {**without_ranks(environment), RUN: f"{run.root}:{run.size + count}"}
