"""Which of several processes this one is, as torchrun says in the environment; no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from perfsuite.errors import RanksApart

# What torchrun sets for a process; a process started by a rank must not take itself for one.
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

ENDING = "PERFSUITE_ENDING"  # names the file for the reason of an early end of all ranks


@dataclass(frozen=True)
class Place:
    """This process among those that measure together."""

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Place | None":
        """Read what torchrun set; None where this process is alone."""
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
        """Tell whether this process judges, reports and remembers."""
        return self.rank == 0

    @property
    def is_one_machine(self) -> bool:
        """Tell whether all ranks run here."""
        return self.local_size == self.size


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a child that starts ranks of its own, or none."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _SET_BY_TORCHRUN and not name.startswith("TORCHELASTIC_")
    }


class Together(Protocol):
    """What processes that measure together agree on; values are plain (they travel as JSON)."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102

    def first(self, value: Any) -> Any:
        """Return the word of the first rank."""

    def any(self, flag: bool) -> bool:
        """Tell whether any rank says so."""

    def gather(self, value: Any) -> list[Any]:
        """Return what every rank says, in their order."""


class Alone:
    """What a single process agrees on with itself."""

    rank, size = 0, 1

    def first(self, value: Any) -> Any:
        """Return the own word."""
        return value

    def any(self, flag: bool) -> bool:
        """Return the own flag."""
        return flag

    def gather(self, value: Any) -> list[Any]:
        """Return the own value alone."""
        return [value]


ALONE = Alone()
