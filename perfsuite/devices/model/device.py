"""A modelled GPU: steps on CPU tensors, counted exactly, timed by prediction; never claims to measure."""

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from perfsuite.devices import DeviceFacts
from perfsuite.devices.code_lines import UNKNOWN
from perfsuite.devices.kernels import OptimizerMark
from perfsuite.devices.model.as_cuda import as_on_cuda, tensors_in
from perfsuite.devices.model.cards import Card
from perfsuite.devices.model.kinds import watch_optimizers
from perfsuite.devices.model.links import Ring, find_cards
from perfsuite.devices.model.placement import Placement
from perfsuite.devices.model.watcher import Watcher
from perfsuite.devices.model.window import ModelWindow
from perfsuite.devices.optimizer_marks import around_optimizers
from perfsuite.insight import Insight
from perfsuite.metrics import Tolerance

MODEL_ERROR = 0.25  # predicted times are compared with a baseline no more finely than this
_TIMES = ("step_time", "speedup")


def open_model(name: str, root: Path | None = None) -> "ModelDevice":
    """Return the modelled card of that name, or several: 4xa10, 4xa10@pcie."""
    card, ring = find_cards(name, root)
    return ModelDevice(card, root or Path.cwd(), ring)


class ModelDevice:
    """Count on the CPU what a step would do on a card, and predict how long it would take there."""

    is_accelerator = True
    modelled = True
    min_seconds = 0.0
    torch_name = "cpu:0"  # torch's CPU under a name of its own, so that moves to the card are seen
    tolerances: Mapping[str, Tolerance] = {
        "peak_memory": Tolerance(0.0),
        **{name: Tolerance(MODEL_ERROR, least=MODEL_ERROR) for name in _TIMES},
        # What a loader costs may have been measured on a busy host: told, and never held against a baseline.
        "samples_per_s": Tolerance(1.0, least=1.0),
    }

    def __init__(self, card: Card, root: Path, ring: Ring | None = None) -> None:
        self.card = card
        self.ring = ring  # steps run once, as on the first of its cards
        self.name = f"model:{card.name}"
        if ring is not None:
            self.name = f"model:{ring.count}x{card.name}@{ring.link.name}"
        self._root = root
        self._open = contextlib.ExitStack()
        self.watcher: Watcher | None = None

    def facts(self) -> DeviceFacts:
        """Return the card's name as that of a model."""
        how = "calibrated" if self.card.is_calibrated else "from its sheet"
        kind, title, ring = self.card.name, self.card.title, self.ring
        if ring is not None:
            kind = f"{ring.count}x{kind}-{ring.link.name}"
            title = f"{ring.count} {title} over {ring.link.title}"
        return DeviceFacts(
            f"model-{kind}",
            f"{title} modelled",
            f"modelled, the card {how}",
            memory_bytes=int(self.card.memory_bytes),
        )

    def count(self) -> int:
        """Return how many cards are modelled."""
        return 1 if self.ring is None else self.ring.count

    def now(self) -> float:
        """Return 0: a modelled card has no clock of its own outside a window."""
        return 0.0

    def wait(self) -> None:
        """Return at once: nothing runs."""

    def state(self) -> Hashable:
        """Return nothing that changes: compiled functions run as they are written."""
        return None

    def begin_test(self) -> None:
        """Watch torch from here, so that it is known which tensors are on the card."""
        self.end_test()
        self.watcher = Watcher(self._root)
        self._open.enter_context(watch_optimizers(self.watcher.memory))
        self._open.enter_context(self._marked_optimizers(self.watcher))
        self._open.enter_context(as_on_cuda())
        self._open.enter_context(Placement(self.watcher))
        self._open.enter_context(self.watcher)

    @staticmethod
    def _marked_optimizers(watcher: Watcher) -> contextlib.AbstractContextManager[None]:
        def note(is_begin: bool) -> None:
            if watcher.is_counting:
                watcher.events.append(OptimizerMark(is_begin))

        return around_optimizers(lambda: note(True), lambda: note(False))

    def end_test(self) -> None:
        """Let torch alone again."""
        self._open.close()
        self.watcher = None

    def inspect(self, _step: Any, _step_seconds: float, _resident: Any = None) -> Insight:
        """Return nothing: every step is counted whole already."""
        return Insight()

    def cool_down(self, _seconds: float) -> None:
        """Return at once: a model does not get warm."""

    def pin(self, batch: Any) -> None:
        """Take a batch's tensors for pinned ones."""
        assert self.watcher is not None
        for tensor in tensors_in(batch):
            self.watcher.settle(tensor, UNKNOWN, resident=False).pinned = True

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Let torch alone for a while: what a loader does is the host's."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            yield

    def start(self) -> ModelWindow:
        """Count from here."""
        if self.watcher is None:
            self.begin_test()
        assert self.watcher is not None
        return ModelWindow(self.watcher, self.card, self.ring)
