"""Profile a step on the CPU: the time of every operator, the line that called it, the time in between."""

import contextlib
import mmap
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite.devices.code_lines import Place, Places
from perfsuite.devices.operators import Rule, sequence_number
from perfsuite.devices.torch_access import around_optimizers
from perfsuite.host import Stopwatch, page_faults
from perfsuite.records import Clue, Insight, whole
from perfsuite.statistics import median

_MOST_TIMED = 100_000  # operators of a step; the others are counted and assumed to take as long
_STEPS = 3
_WATCHED = 2
_PAGES = 1024
_SLOW_STEP_SECONDS = 2.0  # longer steps are timed once
_TOO_LONG_SECONDS = 30.0  # two more such steps are not worth the time
# Python, dispatcher and autograd around an operator cost a few times as much as an empty operator.
_HOST_COST = 4.0
_EMPTY_CALLS = 200


class OpWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Time each operator and count operators by the line that called them."""

    def __init__(self, root: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = Places(root)
        self.count = 0
        self.optimizer_count = 0
        self.seconds: list[float] = []
        self.calls: Counter[tuple[Any, Place]] = Counter()
        self.written: Counter[tuple[Any, Place]] = Counter()  # calls written in the code, without gradients
        self.syncs: Counter[Place] = Counter()
        self.is_optimizing = False
        self.running_share = 1.0  # of the wall time; for the rest other processes had the cores
        self._rules: dict[Any, Rule] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Compiled functions run as written in these steps; torch's guard would cost more than this mode.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Time the operator, then count it."""
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = Rule(func)
        if self.is_optimizing:
            self.optimizer_count += not rule.is_view
            return func(*args, **kwargs)
        if rule.is_view:
            result = func(*args, **kwargs)
            self._place()  # remembered for its gradient, which is not a view
            return result
        self.count += 1
        if self.count > _MOST_TIMED:
            return func(*args, **kwargs)
        started = time.perf_counter()
        result = func(*args, **kwargs)
        self.seconds.append(time.perf_counter() - started)
        place = self._place()
        self.calls[func, place] += 1
        if torch._C._current_autograd_node() is None:
            self.written[func, place] += 1
        if rule.reads:
            self.syncs[place] += 1
        return result

    def _place(self) -> Place:
        node = torch._C._current_autograd_node()
        if node is None:
            place = self.places.here(3)
            self.places.note_forward(sequence_number(), place)
            return place
        return self.places.of_backward(node._sequence_nr()) or self.places.here(3)

    def begin_optimizer(self) -> None:
        """Stop recording: the optimizer's operators follow."""
        self.is_optimizing = True

    def end_optimizer(self) -> None:
        """Resume recording."""
        self.is_optimizing = False


def inspect_step(step: Callable[[], object], step_seconds: float, root: Path) -> Insight:
    """Run a few more steps and return where their time goes; nothing for steps that take too long."""
    if not 0 < step_seconds < _TOO_LONG_SECONDS:
        return Insight()
    steps = _STEPS if step_seconds < _SLOW_STEP_SECONDS else 1
    bare = bare_step(step, steps)
    empty = _empty_operator_seconds()
    # The fastest of a few: other processes only ever add time.
    watch = min((_watched(step, root) for _ in range(min(steps, _WATCHED))), key=lambda run: sum(run.seconds))
    optimizer = bare.optimizer / bare.seconds
    if not watch.count:
        return Insight(shares=whole({"optimizer": optimizer, "other": 1.0 - optimizer}))
    timed = watch.count / len(watch.seconds)
    touching, releasing = (bare.faults * cost / bare.seconds for cost in page_costs())
    inside = watch.running_share * sum(max(seconds - empty, 0.0) for seconds in watch.seconds)
    kernels = timed * inside / bare.seconds
    left = max(1.0 - kernels - optimizer, 0.0)
    gaps = min(left, _HOST_COST * empty * watch.count / bare.seconds)
    # New pages are fetched inside operators and released between them.
    touching, releasing = min(touching, kernels), min(releasing, left - gaps)
    shares = {
        "launch_gaps": gaps,
        "kernels": kernels - touching,
        "optimizer": optimizer,
        "allocator": touching + releasing,
        "other": left - gaps - releasing,
    }
    return Insight(shares=whole(shares), clues=_clues(watch, empty))


def _watched(step: Callable[[], object], root: Path) -> OpWatch:
    watch = OpWatch(root)
    is_compiling = "torch._dynamo" in sys.modules  # loading it takes seconds
    # Without it Dynamo would compile the step again, together with the watch itself.
    as_written = torch.compiler.set_stance("force_eager") if is_compiling else contextlib.nullcontext()
    with (
        around_optimizers(watch.begin_optimizer, watch.end_optimizer),
        as_written,
        watch,
        Stopwatch() as timed,
    ):
        step()
    watch.running_share = timed.unqueued_share
    return watch


def operator_lines(step: Callable[[], object], root: Path) -> tuple[int, dict[str, Clue]]:
    """Run a step and return its number of operators, and the lines that call most of them."""
    watch = _watched(step, root)  # each operator becomes a launch on a GPU
    return watch.count + watch.optimizer_count, _line_clues(watch) if watch.calls else {}


class Bare(NamedTuple):
    """A step timed without the watch, and its optimizers; the time of other processes is left out."""

    seconds: float
    optimizer: float
    faults: int  # pages of memory fetched from the system


def bare_step(step: Callable[[], object], steps: int) -> Bare:
    """Return the fastest of a few steps."""
    started: list[float] = []
    optimizer_seconds: list[float] = []

    def end() -> None:
        optimizer_seconds.append(time.perf_counter() - started.pop())

    runs = []
    with around_optimizers(lambda: started.append(time.perf_counter()), end):
        for _ in range(steps):
            optimizer_seconds.clear()
            before = page_faults()
            with Stopwatch() as timed:  # the clock runs here
                step()
            faults = page_faults() - before
            optimizer = timed.unqueued_share * sum(optimizer_seconds)
            runs.append(Bare(max(timed.unqueued_seconds, 1e-9), optimizer, faults))
    return min(runs)


def page_costs() -> tuple[float, float]:
    """Return the seconds it takes to fetch a page of memory from the system, and to release it."""
    memory = mmap.mmap(-1, _PAGES * mmap.PAGESIZE)
    with Stopwatch() as touching:
        memory[:: mmap.PAGESIZE] = bytes(_PAGES)
    with Stopwatch() as releasing:
        memory.close()
    return touching.unqueued_seconds / _PAGES, releasing.unqueued_seconds / _PAGES


def _empty_operator_seconds() -> float:
    """Return what an operator that does nothing costs, timed as the watch times one."""
    tensor = torch.ones(1)
    add = torch.ops.aten.add.Tensor
    seconds = []
    for _ in range(_EMPTY_CALLS):
        started = time.perf_counter()
        add(tensor, tensor)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def _clues(watch: OpWatch, empty: float) -> dict[str, Clue]:
    clues: dict[str, Clue] = {
        "kernels_per_step": float(watch.count),
        "kernel_seconds": median(watch.seconds),
        "short_kernel_seconds": 5 * empty,  # below this, calling an operator costs as much as its work
    }
    clues |= _line_clues(watch)
    if watch.syncs:
        place, _ = watch.syncs.most_common(1)[0]
        clues |= {"syncs": float(sum(watch.syncs.values())), "sync_place": place.label}
    return clues


def _line_clues(watch: OpWatch) -> dict[str, Clue]:
    by_place: Counter[Place] = Counter()
    for (_, place), count in watch.calls.items():
        by_place[place] += count
    place, count = by_place.most_common(1)[0]
    ((_, repeated_place), repeated_count) = (watch.written or watch.calls).most_common(1)[0]
    return {
        "launch_place": place.label,
        "launch_place_count": float(count),
        "repeated_kernel_place": repeated_place.label,
        "repeated_kernel_count": float(repeated_count),
    }
