"""Which physical devices a run needs for itself, under names that every process and container shares."""

import os
from typing import TYPE_CHECKING, cast

from perfsuite.devices import Device
from perfsuite.devices.cuda.choice import list_uuids
from perfsuite.devices.cuda.identity import Visible, nvml_uuids
from perfsuite.devices.cuda.nvml import load_binding, open_nvml
from perfsuite.errors import DeviceMissing, RunInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfsuite.devices.cuda.device import CudaDevice


def physical_names(device: Device, *, needs_all: bool = False) -> tuple[str, ...]:
    """Return the names to lock for a device: a card's UUID, the CPU as one, none for what nobody can disturb.

    `needs_all` is for tests that use several cards: which ones, they do not say. A device from elsewhere may
    have its own `lock_names`.
    """
    asked = getattr(device, "lock_names", None)
    if asked is not None:
        return tuple(asked)
    kind = device.facts().kind
    if device.modelled or kind not in ("cpu", "cuda"):
        return ()
    if kind == "cpu":
        return ("cpu",)
    card = cast("CudaDevice", device)
    index = int(card.name.removeprefix("cuda:"))
    indices = range(card.count()) if needs_all else (index,)
    return tuple(_uuid(card.bare_uuid(one), one) for one in indices)


def _uuid(bare: str, index: int) -> str:
    """Return a card's UUID as NVML spells it, which knows whether it is a slice."""
    candidates = nvml_uuids(bare, index, os.environ)
    try:
        found = open_nvml(candidates).ask("nvmlDeviceGetUUID").value
    except RunInvalid:  # told by every window
        found = None
    return candidates[0] if found is None else str(found)


def cards_to_share(environment: "Mapping[str, str]") -> tuple[str, ...]:
    """Return one value of CUDA_VISIBLE_DEVICES for each card that may be used, without opening any.

    A process with a context on a card would be a stranger to whoever measures there.
    """
    visible = Visible.from_environment(environment)
    if visible.form in ("none", "wrong"):
        raise DeviceMissing("CUDA_VISIBLE_DEVICES hides every card")
    if visible.form == "mig":
        return visible.entries
    try:
        binding, why = load_binding()
        known = () if binding is None else list_uuids(binding)
    except RunInvalid as error:
        raise DeviceMissing(str(error)) from None
    if not known:
        raise DeviceMissing(why or "NVML sees no card")
    if visible.form == "unset":
        return known
    if visible.form == "uuids":
        return _completed(visible.entries, known)
    # CUDA's numbers are NVML's only in PCI order; in any other they are handed on, and CUDA reads them.
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return visible.entries
    return tuple(known[int(entry)] for entry in visible.entries if int(entry) < len(known))


def _completed(entries: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return whole UUIDs for shortened ones, up to the first that is not known: CUDA stops there too."""
    cards: list[str] = []
    for entry in entries:
        found = [uuid for uuid in known if uuid.lower().startswith(entry.lower())]
        if len(found) != 1:
            break
        cards += found
    return tuple(cards)
