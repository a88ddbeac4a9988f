"""Watch torch's allocator in a window: how many steps, and how much time, its requests to the driver cost."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MAX_SHARE = 0.05  # of the steps and of the time; the median of the steps does not notice so few
# Reading the counters costs tens of microseconds: too much for every step of a millisecond.
_BLOCK_SECONDS = 0.05
_CAUSES = {
    "num_device_alloc": "the allocator requested memory from the driver",
    "num_alloc_retries": "the allocator ran out of memory and retried",
}


class Block(NamedTuple):
    """A run of steps between two readings of the counters."""

    first: int
    end: int  # the number of the step after the last one
    growth: Mapping[str, int]

    @property
    def steps(self) -> int:
        """Return how many steps it has."""
        return self.end - self.first


class AllocationWatch:
    """Read the allocator's counters between steps, every few hundredths of a second."""

    def __init__(self, torch: Any, index: int, now: Callable[[], float] = time.perf_counter) -> None:
        self._torch, self._index, self._now = torch, index, now
        self._counts = self._read()
        self._read_at = now()
        self.blocks: list[Block] = []

    def _read(self) -> dict[str, int]:
        stats = self._torch.cuda.memory_stats_as_nested_dict(self._index)
        return {name: int(stats.get(name, 0)) for name in _CAUSES}

    def after_step(self, steps: int) -> None:
        """Read the counters after that many steps if the last reading is old enough."""
        if self._now() - self._read_at >= _BLOCK_SECONDS:
            self.end_block(steps)

    def end_block(self, steps: int) -> None:
        """Read the counters; what they have grown by happened since the last reading."""
        counts = self._read()
        growth = {name: count - self._counts[name] for name, count in counts.items()}
        first = self.blocks[-1].end if self.blocks else 0
        self.blocks.append(Block(first, steps, growth))
        self._counts, self._read_at = counts, self._now()

    def grown(self, name: str) -> int:
        """Return how often one of the causes occurred in the window."""
        return sum(block.growth[name] for block in self.blocks)

    def check(self, step_seconds: Sequence[float]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return notes, and the reasons why the window does not count."""
        notes: list[str] = []
        invalid: list[str] = []
        for name, words in _CAUSES.items():
            if not (count := self.grown(name)):
                continue
            text = f"{words} {count} {'time' if count == 1 else 'times'} in the measured part"
            if not step_seconds:  # nobody marked steps: what it cost is unknown, but retries cost much
                (invalid if name == "num_alloc_retries" else notes).append(text)
                continue
            steps, seconds = cost(self.blocks, name, step_seconds)
            if max(steps, seconds) > MAX_SHARE:
                told = f"{100 * steps:.0f} % of the steps and {100 * seconds:.0f} % of the time"
                invalid.append(f"{text}: it cost {told}, more than {100 * MAX_SHARE:.0f} %")
            else:
                notes.append(f"{text}, in at most {100 * steps:.1f} % of the steps")
        return tuple(notes), tuple(invalid)


def cost(blocks: Sequence[Block], name: str, step_seconds: Sequence[float]) -> tuple[float, float]:
    """Return the shares of the steps and of the time that a cause cost at most."""
    steps = sum(min(block.growth[name], block.steps) for block in blocks)
    timed = [(block, sum(step_seconds[block.first : block.end])) for block in blocks if block.steps]
    others = [seconds / block.steps for block, seconds in timed if not block.growth[name]]
    total = sum(step_seconds)
    if not others or total <= 0:
        return steps / len(step_seconds), 0.0
    # Batches of different lengths, and a busy host, make some blocks slow: lost is what no other block took.
    lost = sum(
        max(seconds - block.steps * max(others), 0.0) for block, seconds in timed if block.growth[name]
    )
    return steps / len(step_seconds), lost / total
