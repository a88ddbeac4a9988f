"""A modelled GPU: real steps on CPU tensors, counted exactly, timed by prediction; never claims to measure."""

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from perfsuite.devices import DeviceFacts, Timing
from perfsuite.devices.ghosts import Ghosts
from perfsuite.devices.gpus import Card, find_card
from perfsuite.devices.kernels import Event, Launch
from perfsuite.devices.kinds import classify_gradients, find_parameters, watch_optimizers
from perfsuite.devices.placement import Placement
from perfsuite.devices.places import UNKNOWN
from perfsuite.devices.tally import Tally, tally
from perfsuite.devices.timeline import Played, Timeline, utilization_series
from perfsuite.devices.watching import Watcher
from perfsuite.records import Tolerance

MODEL_ERROR = 0.25  # predicted times are compared with a baseline no more finely than this
_ENOUGH_LAUNCHES, _ENOUGH_FLOPS = 20_000, 1e11  # of one window: more steps would tell nothing new
_HUGE_LAUNCHES, _HUGE_FLOPS = 300_000, 2e12  # of one step: it is run once
_BUDGET_BYTES = 2 * 2**30  # of activations kept whole on the host
_SERIES_POINTS = 200
_TIMES = ("step_time", "speedup")


@dataclass(frozen=True)
class ModelTiming(Timing):
    """A timing that was predicted, with what was counted."""

    tally: Tally = Tally({})
    series: tuple[float, ...] = ()
    data_wait: float | None = None


def open_model(name: str, root: Path | None = None) -> "ModelDevice":
    """Return the modelled card of that name."""
    return ModelDevice(find_card(name, root), root or Path.cwd())


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

    def __init__(self, card: Card, root: Path) -> None:
        self.card = card
        self.name = f"model:{card.name}"
        self._root = root
        self._open = contextlib.ExitStack()
        self.watcher: Watcher | None = None

    def facts(self) -> DeviceFacts:
        """Return the card's name as that of a model."""
        how = "calibrated" if self.card.is_calibrated else "from its sheet"
        return DeviceFacts(
            f"model-{self.card.name}",
            f"{self.card.title} modelled",
            f"modelled, the card {how}",
            memory_bytes=int(self.card.memory_bytes),
        )

    def count(self) -> int:
        """Return 1: several cards are not modelled."""
        return 1

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
        self._open.enter_context(_as_on_cuda())
        self._open.enter_context(Placement(self.watcher))
        self._open.enter_context(self.watcher)

    def end_test(self) -> None:
        """Let torch alone again."""
        self._open.close()
        self.watcher = None

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

    def start(self) -> "ModelWindow":
        """Count from here."""
        if self.watcher is None:
            self.begin_test()
        assert self.watcher is not None
        return ModelWindow(self.watcher, self.card)


class ModelWindow:
    """Steps as lists of events."""

    def __init__(self, watcher: Watcher, card: Card) -> None:
        self._watcher = watcher
        self._card = card
        self._steps: list[list[Event]] = []
        self._ghosts = Ghosts(watcher.memory, _BUDGET_BYTES)
        if not watcher.has_residents:
            watcher.all_resident = True
        self._parameters = find_parameters(watcher.memory)
        watcher.events = []
        watcher.ghosts = self._ghosts
        watcher.memory.open()
        watcher.is_counting = True

    def mark(self) -> None:
        """Note the end of a step."""
        self._ghosts.end()
        events, self._watcher.events = self._watcher.events, []
        classify_gradients(self._watcher.memory, self._parameters)
        self._watcher.places.forget_forward()
        self._steps.append(events)

    def is_huge(self) -> bool:
        """Tell whether a step is too large to be run twice."""
        launches, flops = self._effort()
        return launches >= _HUGE_LAUNCHES or flops >= _HUGE_FLOPS

    def is_enough(self) -> bool:
        """Tell whether further steps would only repeat what is known."""
        launches, flops = self._effort()
        return launches >= _ENOUGH_LAUNCHES or flops >= _ENOUGH_FLOPS

    def _effort(self) -> tuple[int, float]:
        launches = [event for events in self._steps for event in events if isinstance(event, Launch)]
        return len(launches), sum(event.kernel.flops for event in launches)

    def known(self) -> Sequence[float]:
        """Return nothing: times are known at the end."""
        return ()

    def stop(self, wait: Callable[[float], float] | None = None) -> ModelTiming:
        """Add up what was counted and play it on the card's lanes."""
        peak = self._watcher.memory.close()
        self.close()
        timeline = Timeline(self._card)
        for events in self._steps:
            timeline.play(events, wait)
        played = timeline.result()
        ends = (0.0, *played.step_ends)
        return ModelTiming(
            step_seconds=tuple(after - before for before, after in zip(ends, ends[1:], strict=False)),
            wall_seconds=played.seconds,
            utilization=played.busy_share,
            peak_memory_bytes=float(peak.size_bytes),
            reported=_reported(played, self._watcher),
            notes=self._notes(),
            tally=tally(self._steps, peak),
            series=tuple(utilization_series(played, played.seconds / _SERIES_POINTS)),
            data_wait=played.wait_seconds / played.seconds if wait is not None and played.seconds else None,
        )

    def close(self) -> None:
        """Stop counting."""
        self._ghosts.end()
        self._watcher.is_counting = False
        self._watcher.events = []

    def _notes(self) -> tuple[str, ...]:
        watcher, notes = self._watcher, []
        if watcher.all_resident:
            notes.append("nothing was moved to perf.device: every tensor is taken to be on the modelled card")
        if watcher.by_bytes:
            notes.append(f"costed by their bytes only, for want of a rule: {', '.join(sorted(watcher.by_bytes))}")
        if watcher.strangers:
            place, count = next(iter(watcher.strangers.items()))
            where = f"{place.key.partition(': ')[0]}:{place.line}"
            notes.append(
                f"{count} tensor(s) of the host were used as if they were on the card, first at {where}: "
                "a real card would have refused"
            )
        if self._ghosts.count:
            notes.append(
                f"activations beyond {_BUDGET_BYTES // 2**30} GiB were kept as shapes only: counts hold, values do not"
            )
        if self._card.memory_bytes < watcher.memory.highest_bytes:
            notes.append(f"more than the {self._card.memory_bytes / 1e9:.0f} GB of the {self._card.title}")
        return tuple(notes)


def _reported(played: Played, watcher: Watcher) -> dict[str, float]:
    total = played.seconds or 1.0
    return {
        **{f"modelled_{cause}_gap_share": seconds / total for cause, seconds in played.gaps.items()},
        "operators_without_rule": float(len(watcher.by_bytes)),
    }


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
def _as_on_cuda() -> Iterator[None]:
    """Let optimizers choose as on CUDA (foreach), and compiled functions run as they are written."""
    import torch.optim.optimizer as optimizers

    module: Any = optimizers
    supported, compile_ = module._get_foreach_kernels_supported_devices, torch.compile

    def as_written(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda decorated: decorated

    # What was compiled before the test runs as written too; asking for it without need would load the compiler.
    is_loaded = "torch._dynamo" in sys.modules
    module._get_foreach_kernels_supported_devices = lambda: [*supported(), "cpu"]
    torch.compile = as_written
    try:
        with torch.compiler.set_stance("force_eager") if is_loaded else contextlib.nullcontext():
            yield
    finally:
        module._get_foreach_kernels_supported_devices, torch.compile = supported, compile_
