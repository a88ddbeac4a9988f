"""Look into a step on the CPU: the time of every operator, the line it comes from, what lies between them."""

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
from perfsuite.devices.op_facts import Rule, sequence_number
from perfsuite.devices.optimizer_marks import around_optimizers
from perfsuite.host import Stretch, page_faults
from perfsuite.insight import Clue, Insight, whole
from perfsuite.statistics import median

_MOST_TIMED = 100_000  # operators of a step; further ones are counted and taken to be like these
_STEPS = 3
_WATCHED = 2
_PAGES = 1024
_SLOW_STEP_SECONDS = 2.0  # longer steps are timed once
_TOO_LONG_SECONDS = 30.0  # two more of such steps are not worth their time
# Python, dispatcher and autograd around an operator cost a few times what an empty one costs by itself.
_HOST_COST = 4.0
_EMPTY_CALLS = 200


class OpWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Time operators one by one and count them by the line that called them."""

    def __init__(self, root: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = Places(root)
        self.count = 0
        self.seconds: list[float] = []
        self.calls: Counter[tuple[Any, Place]] = Counter()
        self.written: Counter[tuple[Any, Place]] = Counter()  # the code's own calls, no gradients
        self.syncs: Counter[Place] = Counter()
        self.is_optimizing = False
        self.own_share = 1.0  # of the wall time: the rest others had the cores
        self._rules: dict[Any, Rule] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Compiled functions run as written in these steps; torch's guard would cost more than we do.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator on the clock, then book it."""
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = Rule(func)
        if self.is_optimizing:
            return func(*args, **kwargs)
        if rule.is_view:
            result = func(*args, **kwargs)
            self._place()  # remembered for its gradient, which is no view
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
        if rule.is_sync:
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
        """Leave what follows to the optimizer."""
        self.is_optimizing = True

    def end_optimizer(self) -> None:
        """Watch again."""
        self.is_optimizing = False


def look_into(step: Callable[[], object], step_seconds: float, root: Path) -> Insight:
    """Run a few more steps and tell where their time goes; nothing for steps that take too long."""
    if not 0 < step_seconds < _TOO_LONG_SECONDS:
        return Insight()
    steps = _STEPS if step_seconds < _SLOW_STEP_SECONDS else 1
    bare = bare_step(step, steps)
    empty = _empty_operator_seconds()
    # The quietest of a few: another process's turn only ever adds time.
    watch = min(
        (_watched(step, root) for _ in range(min(steps, _WATCHED))), key=lambda seen: sum(seen.seconds)
    )
    optimizer = bare.optimizer / bare.seconds
    if not watch.count:
        return Insight(shares=whole({"optimizer": optimizer, "other": 1.0 - optimizer}))
    timed = watch.count / len(watch.seconds)
    touching, releasing = (bare.faults * cost / bare.seconds for cost in page_costs())
    inside = watch.own_share * sum(max(seconds - empty, 0.0) for seconds in watch.seconds)
    kernels = timed * inside / bare.seconds
    left = max(1.0 - kernels - optimizer, 0.0)
    gaps = min(left, _HOST_COST * empty * watch.count / bare.seconds)
    # New pages are fetched inside operators and given back between them.
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
    # Without it Dynamo would compile the step once more, and the watch itself with it.
    as_written = torch.compiler.set_stance("force_eager") if is_compiling else contextlib.nullcontext()
    with around_optimizers(watch.begin_optimizer, watch.end_optimizer), as_written, watch, Stretch() as seen:
        step()
    watch.own_share = seen.own_share
    return watch


def lines_of(step: Callable[[], object], root: Path) -> dict[str, Clue]:
    """Run one step and tell which lines call most operators: each becomes a launch on a GPU."""
    watch = _watched(step, root)
    return _line_clues(watch) if watch.calls else {}


class Bare(NamedTuple):
    """One step with nothing but a clock around it and its optimizers, other processes' turns left out."""

    seconds: float
    optimizer: float
    faults: int  # pages of memory that were fetched from the system


def bare_step(step: Callable[[], object], steps: int) -> Bare:
    """Return the quietest of a few steps."""
    begun: list[float] = []
    inside: list[float] = []

    def end() -> None:
        inside.append(time.perf_counter() - begun.pop())

    seen = []
    with around_optimizers(lambda: begun.append(time.perf_counter()), end):
        for _ in range(steps):
            inside.clear()
            before = page_faults()
            with Stretch() as timed:  # the clock runs here
                step()
            faults = page_faults() - before
            seen.append(Bare(max(timed.own_seconds, 1e-9), timed.own_share * sum(inside), faults))
    return min(seen)


def page_costs() -> tuple[float, float]:
    """Return the seconds it takes to fetch a page of memory from the system, and to give it back."""
    memory = mmap.mmap(-1, _PAGES * mmap.PAGESIZE)
    with Stretch() as touching:
        memory[:: mmap.PAGESIZE] = bytes(_PAGES)
    with Stretch() as releasing:
        memory.close()
    return touching.own_seconds / _PAGES, releasing.own_seconds / _PAGES


def _empty_operator_seconds() -> float:
    """Return what an operator costs that does nothing, seen as the watch sees one."""
    one = torch.ones(1)
    add = torch.ops.aten.add.Tensor
    seconds = []
    for _ in range(_EMPTY_CALLS):
        started = time.perf_counter()
        add(one, one)
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
        clues |= {"syncs": float(sum(watch.syncs.values())), "sync_place": place.told}
    return clues


def _line_clues(watch: OpWatch) -> dict[str, Clue]:
    by_place: Counter[Place] = Counter()
    for (_, place), count in watch.calls.items():
        by_place[place] += count
    place, count = by_place.most_common(1)[0]
    ((_, looped), times) = (watch.written or watch.calls).most_common(1)[0]
    return {
        "launch_place": place.told,
        "launch_place_count": float(count),
        "repeated_kernel_place": looped.told,
        "repeated_kernel_count": float(times),
    }
