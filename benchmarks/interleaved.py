"""Two ways of doing the same, measured turn by turn, and the ratio of their times with its spread."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

Work = Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """How many times as long the first takes as the second; low to high is the middle half of the pairs."""

    median: float
    low: float
    high: float
    first_ms: float
    second_ms: float
    pairs: int


@dataclass(frozen=True)
class Row:
    """One line of the table: what was compared, what was asked, what came out."""

    what: str
    goal: str
    reached: bool
    figure: str
    ratio: Ratio | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def compare(first: Work, second: Work, *, pairs: int, repeat_first: int = 1, repeat_second: int = 1) -> Ratio:
    """Run both in turn, the order alternating, after one run each that is not counted."""
    first(), second()
    times: list[tuple[float, float]] = []
    for index in range(pairs):
        if index % 2:
            b = _seconds(second, repeat_second)
            a = _seconds(first, repeat_first)
        else:
            a = _seconds(first, repeat_first)
            b = _seconds(second, repeat_second)
        times.append((a, b))
    ratios = sorted(a / b for a, b in times)
    return Ratio(
        statistics.median(ratios),
        ratios[pairs // 4],
        ratios[-1 - pairs // 4],
        1e3 * statistics.median(a for a, _ in times),
        1e3 * statistics.median(b for _, b in times),
        pairs,
    )


def at_least(what: str, goal: float, ratio: Ratio) -> Row:
    """Judge a ratio that should be large."""
    return Row(what, f"≥ {goal:g}×", ratio.median >= goal, _words(ratio), ratio)


def at_most(what: str, goal: float, ratio: Ratio) -> Row:
    """Judge a ratio that should be small."""
    return Row(what, f"≤ {goal:g}×", ratio.median <= goal, _words(ratio), ratio)


def _seconds(work: Work, repeat: int) -> float:
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    return (time.perf_counter() - start) / repeat


def _words(ratio: Ratio) -> str:
    times = f"{ratio.first_ms:.4g} ms against {ratio.second_ms:.4g} ms"
    return f"{ratio.median:.2f}× ({ratio.low:.2f} to {ratio.high:.2f}; {times})"
