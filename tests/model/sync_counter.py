"""Count the operations that make the host wait for the device, on any machine, by watching the dispatcher."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Their result's value or size is needed on the host before the next operation can be launched.
WAITING = frozenset(
    {
        "_local_scalar_dense",  # .item(), bool(tensor), float(tensor), if tensor:
        "nonzero",
        "masked_select",
        "equal",
        "unique_dim",
        "unique_consecutive",
        "_unique",
        "_unique2",
        "bincount",
        "repeat_interleave",
    }
)


class HostSyncs(TorchDispatchMode):
    """Count waiting operations by name while the context is open."""

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Return how often the host would have waited."""
        return self.by_name.total()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note the operation if it waits, and run it."""
        name = func.overloadpacket.__name__
        if name in WAITING or _indexes_by_mask(name, args) or _leaves_device(name, args, kwargs or {}):
            self.by_name[name] += 1
        return func(*args, **(kwargs or {}))


def _indexes_by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """A bool index is turned into positions, whose number the host has to know."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _leaves_device(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A copy from an accelerator to the host waits for all work before it."""
    if name == "_to_copy":
        target = kwargs.get("device")
        return target is not None and target.type == "cpu" and args[0].device.type != "cpu"
    return name == "copy_" and args[0].device.type == "cpu" and args[1].device.type != "cpu"


class Launches(TorchDispatchMode):
    """Count the operations that reach the device's kernels; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the operation unless its result aliases its input without being written."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))
