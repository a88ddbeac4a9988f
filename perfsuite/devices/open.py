"""Open a device by its name, and under torchrun the one for this process's rank.

Kinds of devices are discovered: every folder here whose package exports a KIND is one, so a new vendor
needs no change to an existing file.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import perfsuite.devices as folder
from perfsuite.devices.cpu import CpuDevice
from perfsuite.devices.protocol import Device, DeviceKind
from perfsuite.errors import DeviceMissing
from perfsuite.processes.world import Place


@cache
def kinds() -> dict[str, DeviceKind]:
    """Return the kinds of devices that have a folder, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if module.ispkg)
    packages = [importlib.import_module(f"{folder.__name__}.{name}") for name in names]
    offered: list[DeviceKind] = [package.KIND for package in packages if hasattr(package, "KIND")]
    return {kind.name: kind for kind in offered}


def resolve(name: str) -> tuple[DeviceKind | None, str]:
    """Return the kind of a name, with `auto` resolved, and the part after its colon; None for the CPU."""
    if name == "auto":
        return next(iter(_present()), None), ""
    if name == "cpu":
        return None, ""
    before, colon, after = name.partition(":")
    kind = kinds().get(before)
    if kind is None or (colon and not after):
        raise _unknown(name)
    cover = next((other for other in kinds().values() if other.covers == kind.name and other.count()), None)
    if cover is not None:
        raise DeviceMissing(
            f"{name}: the cards this process sees are {cover.name}, and their figures must say so; "
            f"name the device auto or {cover.spellings[0]}"
        )
    return kind, after


def _present() -> list[DeviceKind]:
    """Return the kinds whose cards are here; those that really are another's come under that one's name."""
    here = [kind for kind in kinds().values() if kind.count()]
    covered = {kind.covers for kind in here}
    return [kind for kind in here if kind.name not in covered]


def accelerator_count() -> int:
    """Return the number of accelerators of all kinds."""
    return sum(kind.count() for kind in _present())


def environment_for(name: str, root: Path | None, given: Mapping[str, str]) -> Mapping[str, str] | None:
    """Return the environment a process must be started with to have this device; None for as it is.

    Called before anything is loaded: no card is looked for, and a wrong name is reported later.
    """
    before, _, which = name.partition(":")
    kind = kinds().get(before)
    return None if kind is None else kind.environment(which, root, given)


def open_device(name: str, root: Path | None = None) -> Device:
    """Return the device of that name, or raise with the reason why it is not available."""
    kind, which = resolve(name)
    if kind is None:
        return CpuDevice(root)
    device = kind.open(which, root)
    if device is None:
        raise _unknown(name)
    return device


def _unknown(name: str) -> DeviceMissing:
    known = ["auto", "cpu", *(spelling for kind in kinds().values() for spelling in kind.spellings)]
    return DeviceMissing(f"unknown device {name!r}; known: {', '.join(known)}")


def open_for_rank(name: str, root: Path, place: Place | None) -> Device:
    """Open a device by its name; under torchrun every rank gets a different accelerator."""
    if place is None:
        return open_device(name, root)
    kind, which = resolve(name)
    if kind is None:
        return CpuDevice(root)
    if kind.is_modelled:
        raise DeviceMissing(f"{name} is modelled in one process; run it without torchrun")
    if which:
        return open_device(name, root)
    count = max(kind.count(), 1)
    if place.local_rank >= count:
        raise DeviceMissing(
            f"rank {place.rank} would be number {place.local_rank} on a machine with {kind.count()} GPU(s); "
            f"start fewer: torchrun --nproc-per-node={count}"
        )
    return open_device(f"{kind.name}:{place.local_rank}", root)
