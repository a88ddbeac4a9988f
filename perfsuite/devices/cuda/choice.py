"""Choose the card to watch where nobody measures: the one torch uses, the one named, or the only one."""

import sys
from collections.abc import Mapping
from typing import Any

from perfsuite.devices.cuda.identity import Visible, nvml_uuids
from perfsuite.devices.cuda.nvml import Nvml, call, load_binding, open_nvml
from perfsuite.errors import RunInvalid


def open_visible(uuid: str | None, environment: Mapping[str, str]) -> Nvml:
    """Return the card with that UUID, or else torch's current card, the environment's first, the only one."""
    if uuid is not None:
        return open_nvml((uuid,))
    torch = sys.modules.get("torch")  # not imported: a test that does not use it must not pay for it
    if torch is not None and torch.cuda.is_available():
        index = torch.cuda.current_device()
        return open_nvml(nvml_uuids(str(torch.cuda.get_device_properties(index).uuid), index, environment))
    try:
        binding, why = load_binding()
        if binding is None:
            return Nvml(absent=why)
        return _the_only(list_uuids(binding), Visible.from_environment(environment))
    except RunInvalid as error:
        return Nvml(invalid=str(error))


def _the_only(known: tuple[str, ...], visible: Visible) -> Nvml:
    if visible.form in ("none", "wrong"):
        return Nvml(absent="CUDA_VISIBLE_DEVICES hides every card")
    named = visible.entry(0)
    if visible.form == "mig" and named:
        return open_nvml((named,))
    if visible.form == "uuids" and named:
        known = tuple(uuid for uuid in known if uuid.lower().startswith(named.lower()))
    if len(known) == 1:
        return open_nvml(known)
    if not known:
        return Nvml(absent="NVML sees no card")
    return Nvml(absent=f"there are {len(known)} cards, name one: gpu_monitor(uuid={known[0]!r})")


def list_uuids(binding: Any) -> tuple[str, ...]:
    """Return the UUIDs of all cards; the index they are listed by is used for nothing else."""
    count = call(binding, "nvmlDeviceGetCount").value or 0
    handles = (call(binding, "nvmlDeviceGetHandleByIndex", index).value for index in range(count))
    uuids = (call(binding, "nvmlDeviceGetUUID", handle).value for handle in handles if handle is not None)
    return tuple(str(uuid) for uuid in uuids if uuid is not None)
