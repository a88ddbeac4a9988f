"""A modelled GPU: steps run on CPU tensors, are counted exactly, and their times are predicted."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from perfsuite.devices.code_lines import UNKNOWN
from perfsuite.devices.kernels import OptimizerMark
from perfsuite.devices.model.allocator import WORKSPACE_BYTES, WORKSPACE_BYTES_BY_GENERATION
from perfsuite.devices.model.cards import Card, Ring, find_cards
from perfsuite.devices.model.cuda_choices import cuda_choices
from perfsuite.devices.model.later import watch_unseen
from perfsuite.devices.model.measurer import CountingDevice, ModelMeasurer
from perfsuite.devices.model.memory import watch_optimizers
from perfsuite.devices.model.placement import Placement
from perfsuite.devices.model.watcher import Watcher
from perfsuite.devices.model.window import ModelWindow
from perfsuite.devices.protocol import Measurer, Plan
from perfsuite.devices.torch_access import around_optimizers
from perfsuite.metrics import Tolerance
from perfsuite.records import DeviceFacts

MODEL_ERROR = 0.25  # smaller differences between predicted times and a baseline do not count
_TIMES = ("step_time", "speedup")


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside any container."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name))


@contextlib.contextmanager
def as_on_cuda() -> Iterator[None]:
    """Let optimizers and clipping choose as on CUDA, and run compiled functions as written."""
    import torch.optim.optimizer as optimizers

    module: Any = optimizers
    core: Any = torch._C
    group = core._group_tensors_by_device_and_dtype
    supported, compile_ = module._get_foreach_kernels_supported_devices, torch.compile

    def grouped(lists: Any, with_indices: bool = False) -> Any:
        # C++ says they are on the CPU: clipping would move its factor there, a sync that no card has.
        by_device = group(lists, with_indices)
        return {(groups[0][0][0].device, dtype): groups for (_, dtype), groups in by_device.items()}

    def as_written(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda decorated: decorated

    # What was compiled before the test runs as written too; setting it needlessly would load the compiler.
    is_loaded = "torch._dynamo" in sys.modules
    module._get_foreach_kernels_supported_devices = lambda: [*supported(), "cpu"]
    torch.compile = as_written
    core._group_tensors_by_device_and_dtype = grouped
    try:
        with torch.compiler.set_stance("force_eager") if is_loaded else contextlib.nullcontext():
            yield
    finally:
        module._get_foreach_kernels_supported_devices, torch.compile = supported, compile_
        core._group_tensors_by_device_and_dtype = group


def open_model(name: str, root: Path | None = None) -> "ModelDevice":
    """Return the modelled card of that name, or several: 4xa10, 4xa10@pcie."""
    card, ring = find_cards(name, root)
    return ModelDevice(card, root or Path.cwd(), ring)


class ModelDevice(CountingDevice):
    """Count on the CPU what a step would do on a card, and predict how long it would take."""

    is_accelerator = True
    modelled = True
    is_one_process = True
    min_seconds = 0.0
    tolerances: Mapping[str, Tolerance] = {
        "peak_memory": Tolerance(0.0),
        **{name: Tolerance(MODEL_ERROR, least=MODEL_ERROR) for name in _TIMES},
        # A loader's cost may have been measured on a busy host: shown, but never compared with a baseline.
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

    @property
    def torch_name(self) -> str:
        """Return a second name of torch's CPU, so that moves to the card can be detected."""
        return "cpu:0"

    def facts(self) -> DeviceFacts:
        """Return the card's name, marked as modelled."""
        how = "calibrated" if self.card.is_calibrated else "from its sheet"
        if self.card.is_emulated:
            how = "from its sheet, by way of an emulated card"
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
        """Return the number of modelled cards."""
        return 1 if self.ring is None else self.ring.count

    def now(self) -> float:
        """Return 0: a modelled card has no clock outside a window."""
        return 0.0

    def begin_test(self) -> None:
        """Start watching torch, to know which tensors are on the card."""
        self.end_test()
        workspace = WORKSPACE_BYTES_BY_GENERATION.get(self.card.generation, WORKSPACE_BYTES)
        self.watcher = Watcher(self._root, workspace)
        self._open.enter_context(watch_optimizers(self.watcher.memory))
        self._open.enter_context(self._marked_optimizers(self.watcher))
        self._open.enter_context(as_on_cuda())
        watcher = self.watcher
        self._open.callback(watcher.later.end)
        self._open.enter_context(watch_unseen(watcher.later, lambda: watcher.is_counting))
        placement = Placement(watcher)  # after what it answers for has been replaced
        self._open.enter_context(cuda_choices(placement.is_resident))
        self._open.enter_context(placement)
        self._open.enter_context(watcher)

    @staticmethod
    def _marked_optimizers(watcher: Watcher) -> contextlib.AbstractContextManager[None]:
        def mark(is_begin: bool) -> None:
            if watcher.is_counting:
                watcher.events.append(OptimizerMark(is_begin))

        return around_optimizers(lambda: mark(True), lambda: mark(False))

    def end_test(self) -> None:
        """Stop watching torch."""
        self._open.close()
        self.watcher = None

    def measurer(self, plan: Plan) -> Measurer:
        """Return the measurer that counts and predicts: there is nothing to time."""
        return ModelMeasurer(self, plan)

    def cool_down(self, _seconds: float) -> None:
        """Return at once: a model does not get warm."""

    def pin(self, batch: Any) -> None:
        """Treat a batch's tensors as pinned."""
        assert self.watcher is not None
        for tensor in tensors_in(batch):
            self.watcher.settle(tensor, UNKNOWN, resident=False).pinned = True

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Do not watch torch inside the context: a loader works on the host."""
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            yield

    def start(self) -> ModelWindow:
        """Open a window and start counting."""
        if self.watcher is None:
            self.begin_test()
        assert self.watcher is not None
        return ModelWindow(self.watcher, self.card, self.ring)
