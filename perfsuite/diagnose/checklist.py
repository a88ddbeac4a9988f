"""The checklist of a training: before the run from its settings, during it from a reading; needs no torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from perfsuite.errors import ChecklistMissed
from perfsuite.records import Reading
from perfsuite.units import Unit, show

# The names that trainings use for these settings; the first one found counts.
NAMES: Mapping[str, tuple[str, ...]] = {
    "precision": ("precision",),
    "num_workers": ("num_workers", "dataloader_num_workers"),
    "batch_size": ("batch_size", "train_batch_size", "per_device_train_batch_size"),
    "pin_memory": ("pin_memory", "dataloader_pin_memory"),
    "cached": ("cached", "cache", "storage"),
    "resident": ("resident",),
}
_MIXED_FLAGS = ("amp", "use_amp", "bf16", "fp16")  # any of them
_IN_MEMORY = ("shared", "memmap", "memory", "ram", True)
_ABSENT = "not set"


@dataclass(frozen=True)
class Wanted:
    """The expected values; the defaults suit a card of 16 GB or more and a model that can use it."""

    workers: tuple[int, int] = (4, 12)
    batch_size: int = 256
    utilization: float = 0.60
    memory_bytes: float = 5e9
    epoch_seconds: float = 20.0


@dataclass(frozen=True)
class Item:
    """One line of the list: the actual value, the expected one, and what to do if it is missed."""

    name: str
    actual: str
    expected: str
    is_met: bool
    advice: str = ""

    def line(self) -> str:
        """Return the item as it is printed."""
        advice = "" if self.is_met or not self.advice else f"; {self.advice}"
        mark = "x" if self.is_met else " "
        return f"[{mark}] {self.name}: {self.actual} (expected: {self.expected}){advice}"


class Checklist:
    """The items of one training on one device."""

    def __init__(self, config: object, device: str, wanted: Wanted = Wanted()) -> None:  # noqa: B008  frozen
        self._config, self._device, self._wanted = config, device, wanted

    def before(self) -> tuple[Item, ...]:
        """Return the items that need no run: precision, workers, batch size, pinning, caching, a GPU."""
        is_resident = bool(self._setting("resident"))
        precision, batch = self._precision(), self._setting("batch_size")
        storage = self._setting("cached")
        is_mixed = precision is True or "16" in str(precision)
        kind = self._device.partition(":")[0]
        return (
            Item("mixed precision", _shown(precision), "16-mixed or bf16-mixed", is_mixed,
                 "products in half precision are faster and need half the memory"),
            self._workers(is_resident),
            Item("batch size", _shown(batch), f"{self._wanted.batch_size} or more",
                 isinstance(batch, int) and batch >= self._wanted.batch_size,
                 "a card computes many samples in the time of few; accumulate where memory is short"),
            Item("pinned memory", "resident" if is_resident else _shown(self._setting("pin_memory")), "on",
                 is_resident or self._setting("pin_memory") is True,
                 "pin in the loader: pageable copies make the host wait"),
            Item("data in memory", "resident" if is_resident else _shown(storage), "cached or resident",
                 is_resident or storage in _IN_MEMORY,
                 "prepare once and map it; what fits belongs on the device"),
            Item("GPU", f"{self._device}{' (modelled)' if kind == 'model' else ''}", "an accelerator",
                 kind not in ("cpu", ""),
                 "run it on a GPU, or count on a modelled one: --perf-device=model:a10"),
        )  # fmt: skip

    def _precision(self) -> object:
        """Return the configured precision, or whether any of the usual flags is on."""
        named = self._setting("precision")
        flags = [flag for name in _MIXED_FLAGS if (flag := _find(self._config, name)) is not None]
        return named if named is not None or not flags else any(map(bool, flags))

    def _workers(self, is_resident: bool) -> Item:
        low, high = self._wanted.workers
        workers, name = self._setting("num_workers"), "loader workers"
        expected = f"{low} to {high}, or auto"
        if is_resident:
            return Item(name, "none needed, the data is resident", expected, True)
        number = workers if isinstance(workers, int) and not isinstance(workers, bool) else None
        is_met = workers == "auto" or (number is not None and low <= number <= high)
        is_many = number is not None and number > high
        advice = "too many compete for cores and memory" if is_many else "too few starve the training"
        return Item(name, _shown(workers), expected, is_met, advice)

    def during(self, reading: Reading, epoch_samples: int | None = None) -> tuple[Item, ...]:
        """Return the items that a reading answers: utilization, memory, epoch time, fit into memory."""
        wanted, how = self._wanted, " (modelled)" if reading.modelled else ""
        used, memory = reading.utilization, reading.peak_memory_bytes
        speed = reading.samples_per_s
        epoch = epoch_samples / speed if epoch_samples is not None and speed else None
        too_much = next((note for note in reading.notes if note.startswith("more than the ")), "")
        is_host = not reading.is_accelerator
        filled = "not required on a CPU" if is_host else f"{show(wanted.memory_bytes, Unit.BYTES)} or more"
        return (
            Item("utilization", show(used, Unit.FRACTION) + how, show(wanted.utilization, Unit.FRACTION),
                 used is not None and used >= wanted.utilization,
                 "see data wait and launches: a larger batch, fewer launches, faster loading"),
            Item("peak memory", show(memory, Unit.BYTES) + how, filled,
                 is_host or (memory is not None and memory >= wanted.memory_bytes),
                 "there is room for a larger batch; a small model cannot fill a card and need not"),
            Item("epoch", show(epoch, Unit.SECONDS) + how,
                 f"at most {show(wanted.epoch_seconds, Unit.SECONDS)}",
                 epoch is not None and epoch <= wanted.epoch_seconds, "raise samples/s"),
            Item("fits into memory", too_much or "yes", "no out-of-memory", not too_much,
                 "halve the batch and double the accumulation"),
        )  # fmt: skip

    def require(self, items: Iterable[Item]) -> None:
        """Raise ChecklistMissed with every missed item."""
        missed = [item.line() for item in items if not item.is_met]
        if missed:
            head = f"missed items of the training's checklist: {len(missed)}"
            raise ChecklistMissed("\n  ".join([head, *missed]))

    def _setting(self, name: str) -> object:
        for key in NAMES[name]:
            value = _find(self._config, key)
            if value is not None:
                return value
        return None


def _find(config: Any, key: str, visited: frozenset[int] = frozenset()) -> object:
    """Return a setting by name from nested mappings, dataclasses and objects, None if it is missing."""
    if id(config) in visited:
        return None  # objects may refer to each other
    visited |= {id(config)}
    if is_dataclass(config) and not isinstance(config, type):
        entries: dict[Any, Any] = {item.name: getattr(config, item.name) for item in fields(config)}
    elif isinstance(config, Mapping):
        entries = dict(config)
    else:
        entries = dict(getattr(config, "__dict__", {}))
    if entries.get(key) is not None:
        value: object = entries[key]
        return value
    inner: Sequence[Any] = [v for v in entries.values() if not isinstance(v, str | int | float | bool)]
    return next((value for part in inner if (value := _find(part, key, visited)) is not None), None)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return _ABSENT if value is None else str(value)
