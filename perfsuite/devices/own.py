"""The device of this very process: as its name says, and under torchrun the one of its local rank."""

from pathlib import Path
from typing import TYPE_CHECKING

from perfsuite.devices import Device, open_device
from perfsuite.errors import DeviceMissing
from perfsuite.processes.world import Place

if TYPE_CHECKING:
    from perfsuite.devices.ranks.device import RankedDevice
    from perfsuite.devices.ranks.group import Ranks


def open_own(name: str, root: Path, place: Place | None) -> Device:
    """Open a device by its name; every rank takes a GPU of its own."""
    if place is None:
        return open_device(name, root)
    if name.startswith("model:"):
        raise DeviceMissing(f"{name} is modelled in one process; run it without torchrun")
    if name in ("auto", "cuda"):
        from perfsuite.devices.cuda.device import available_count

        count = available_count()
        if name == "cuda" or count:
            if place.local_rank >= max(count, 1):
                raise DeviceMissing(
                    f"rank {place.rank} would be number {place.local_rank} on a machine with {count} GPU(s); "
                    f"start fewer: torchrun --nproc-per-node={max(count, 1)}"
                )
            return open_device(f"cuda:{place.local_rank}", root)
    return open_device(name, root)


def join_ranks(place: Place, own: Device, timeout_seconds: float) -> "tuple[RankedDevice, Ranks]":
    """Join the other ranks: the device of all, and what they agree by."""
    from perfsuite.devices.ranks.device import RankedDevice
    from perfsuite.devices.ranks.group import Ranks

    ranks = Ranks(place, str(getattr(own, "torch_name", own.name)), timeout_seconds)
    device = RankedDevice(own, ranks)
    device.facts()  # all ranks are asked: here, where all of them come by
    return device, ranks
