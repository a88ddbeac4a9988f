"""Learn how long kernels take: the model costs the operators of a step, each shares with its launches."""

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfsuite.devices import operators
from perfsuite.devices.emulated.runtime import Call, Runtime
from perfsuite.devices.kernels import Kernel
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.roofline import seconds
from perfsuite.devices.model.uncertainty import combined_error
from perfsuite.devices.operators import Rule, tensors_of

_LAUNCHES = ("kernel", "library")
Key = tuple[str, str, tuple[int, ...]]  # kind, name, geometry


class Lesson(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run operators, and note with what they cost on the card which kernels they launched."""

    def __init__(self, card: Card) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._card = card
        self._rules: dict[Any, Rule] = {}
        self._launched: list[Key] = []
        self._launches = 0
        self.found: dict[Key, list[float]] = defaultdict(list)
        self.spent: list[tuple[Kernel, float]] = []  # what operators take

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Compiled functions run as written in this step; torch's guard would cost more than we do.
        return False

    def note(self, call: Call) -> None:
        """Take a launch for the running operator's."""
        if call.kind in _LAUNCHES:
            self._launches += 1
            self._launched.append((call.kind, call.name, call.shape))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, then give its launches their share of its time."""
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is None:
            rule = self._rules[func] = Rule(func)
        outer, self._launched = self._launched, []
        result = func(*args, **kwargs)
        launched, self._launched = self._launched, outer
        if launched and rule.has_kernel:
            inputs = tensors_of((*args, *kwargs.values()))
            outputs = tensors_of(result if isinstance(result, tuple) else (result,))
            self._share(self._seconds(func, rule, args, inputs, outputs), launched)
        return result

    def _seconds(
        self, func: Any, rule: Rule, args: tuple[Any, ...], inputs: list[Any], outputs: list[Any]
    ) -> float:
        try:
            kernel = operators.kernel_of(func, inputs, outputs, args, is_tf32=rule.is_tf32())
            took = seconds(kernel, self._card)
        except (IndexError, TypeError, ValueError, AttributeError):
            return 0.0  # an operator whose arguments no rule expects: the least is taken
        self.spent.append((kernel, took))
        return took

    def _share(self, took: float, launched: list[Key]) -> None:
        # A library's product is nearly all of its operator; other kernels of one operator share alike.
        main = [key for key in launched if key[0] == "library"] or launched
        for key in main:
            self.found[key].append(took / len(main))

    def durations(self) -> dict[Key, float]:
        """Return how long a launch takes; one geometry may serve several sizes: their mean keeps the sum."""
        least = self._card.kernel_seconds
        return {key: max(sum(times) / len(times), least) for key, times in self.found.items()}

    def kernel_seconds(self) -> float:
        """Return how long all kernels of the step take; one that no operator explains takes the least."""
        explained = {key: len(times) for key, times in self.found.items()}
        known = sum(took * explained[key] for key, took in self.durations().items())
        return known + (self._launches - sum(explained.values())) * self._card.kernel_seconds


def learn(runtime: Runtime, step: Callable[[], object], card: Card) -> Lesson:
    """Run one step and hand its kernels' durations to the emulator."""
    lesson = Lesson(card)
    with _as_written(), runtime.watched(lesson.note), lesson:
        step()
    for (kind, name, shape), took in lesson.durations().items():
        runtime.learn(kind, name, shape, took)
    return lesson


def predicted(lesson: Lesson, counts: Mapping[str, float], card: Card) -> dict[str, float]:
    """Return what a step takes on the card, its host being the one of the card's entry, not this one.

    The card and its host work side by side; whoever takes longer decides, and a sync costs extra.
    """
    kernels = lesson.kernel_seconds()
    on_card = kernels + counts.get("h2d_bytes", 0.0) / card.pcie_bandwidth
    on_host = counts.get("kernels", 0.0) * (card.dispatch_seconds + card.launch_seconds)
    step = max(on_card, on_host) + counts.get("syncs", 0.0) * card.sync_seconds
    error = combined_error(lesson.spent, card, max(step - kernels, 0.0))
    return {
        "predicted_kernel_seconds": kernels,
        "predicted_step_seconds": step,
        **({} if error is None else {"predicted_step_error": error}),
    }


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    """Let compiled functions run as written: Dynamo would compile them anew, and the lesson with them."""
    is_compiling = "torch._dynamo" in sys.modules  # loading it takes seconds
    with torch.compiler.set_stance("force_eager") if is_compiling else contextlib.nullcontext():
        yield
