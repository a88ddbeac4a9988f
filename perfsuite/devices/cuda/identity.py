"""Identify the card torch uses: what torch is built for, its UUID as NVML spells it, CUDA_VISIBLE_DEVICES."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from perfsuite.devices.cuda.nvml import Nvml, call, load_binding, open_nvml
from perfsuite.errors import DeviceMissing, RunInvalid

_PREFIXES = ("GPU-", "MIG-")
Form = Literal["unset", "none", "indices", "uuids", "mig", "wrong"]


@dataclass(frozen=True)
class Visible:
    """CUDA_VISIBLE_DEVICES as CUDA reads it: up to the first entry it does not know."""

    form: Form
    entries: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Visible":
        """Parse the variable in any of its forms."""
        text = environment.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            return cls("unset")
        entries = tuple(part.strip() for part in text.split(","))
        form = _form(entries[0])
        if form in ("none", "wrong"):
            return cls(form)
        valid = []
        for entry in entries:
            # CUDA stops at the first entry of another form, and sees nothing at all if one occurs twice.
            if _form(entry) != form:
                break
            if entry in valid:
                return cls("none")
            valid.append(entry)
        return cls(form, tuple(valid))

    def entry(self, index: int) -> str | None:
        """Return the entry of the device that torch calls cuda:index."""
        return self.entries[index] if index < len(self.entries) else None


def _form(entry: str) -> Form:
    if entry.startswith("MIG-"):
        return "mig"
    if entry.startswith("GPU-"):
        return "uuids"
    if entry.isdecimal():
        return "indices"
    # An empty value and a negative number hide every device; so does a word, but that is a mistake.
    return "none" if entry == "" or entry.lstrip("-").isdecimal() else "wrong"


class Platform(NamedTuple):
    """What a build of torch runs on under the name «cuda»."""

    name: str  # CUDA or ROCm
    version: str
    kind: str  # of its devices, in baselines
    clock: str
    tool: str  # the command that lists its cards

    @classmethod
    def from_torch(cls, torch: Any) -> "Platform | None":
        """Return the platform; None for a build that has none."""
        cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
        if cuda is not None:
            return cls("CUDA", cuda, "cuda", "CUDA events", "nvidia-smi")
        if hip is None:
            return None
        minor = ".".join(hip.split(".")[:2])
        return cls("ROCm", hip, f"rocm{minor}", "HIP events", "rocm-smi")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def bare_uuid(torch: Any, index: int) -> str:
    """Return the UUID that torch prints for one of its indices; older builds for ROCm know none."""
    properties = torch.cuda.get_device_properties(index)
    return str(getattr(properties, "uuid", f"{properties.name} {index}"))


def open_torch_card(torch: Any, index: int, environment: Mapping[str, str]) -> Nvml:
    """Return torch's card of that index as NVML has it."""
    platform = Platform.from_torch(torch)
    if platform is not None and platform.name != "CUDA":
        return Nvml(absent=f"NVML is NVIDIA's, and torch is built for {platform}")
    return open_nvml(nvml_uuids(bare_uuid(torch, index), index, environment))


def nvml_uuids(bare: str, index: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs to try, in order: the slice the environment names, then the card, then the slice.

    A slice that torch shows under its card's UUID must not be measured as the whole card.
    """
    number = bare
    for prefix in _PREFIXES:
        number = number.removeprefix(prefix)
    visible = Visible.from_environment(environment)
    entry = visible.entry(index) if visible.form == "mig" else None
    return (*((entry,) if entry else ()), *(f"{prefix}{number}" for prefix in _PREFIXES))


def contradiction(uuid: str, index: int, environment: Mapping[str, str]) -> str:
    """Return a note if the environment names another card than the one torch opened, else ""."""
    visible = Visible.from_environment(environment)
    entry = visible.entry(index)
    # A UUID may be shortened to a prefix that no other card has.
    if visible.form != "uuids" or entry is None or uuid.lower().startswith(entry.lower()):
        return ""
    return f"CUDA_VISIBLE_DEVICES names {entry} as cuda:{index}, but torch opened {uuid}"


def order_text(environment: Mapping[str, str]) -> str:
    """Describe which cards CUDA sees and how it numbers them; perfsuite identifies cards by UUID."""
    order = environment.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    visible = Visible.from_environment(environment)
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    cards = {
        "unset": "CUDA sees every card",
        "none": "CUDA sees no card",
        "wrong": f"CUDA sees no card: {shown!r} is neither a number nor a UUID",
    }.get(visible.form, f"CUDA sees {', '.join(visible.entries)}")
    return f"{cards}; CUDA numbers them by {order}, NVML by PCI bus, perfsuite goes by UUID"


def open_visible(uuid: str | None, environment: Mapping[str, str]) -> Nvml:
    """Return the card with that UUID; without one torch's current card, the first visible or the only one."""
    if uuid is not None:
        return open_nvml((uuid,))
    torch = sys.modules.get("torch")  # not imported: a test that does not use it must not pay for the import
    if torch is not None and torch.cuda.is_available():
        return open_torch_card(torch, torch.cuda.current_device(), environment)
    try:
        binding, why = load_binding()
        if binding is None:
            return Nvml(absent=why)
        return _only_card(list_uuids(binding), Visible.from_environment(environment))
    except RunInvalid as error:
        return Nvml(invalid=str(error))


def _only_card(known: tuple[str, ...], visible: Visible) -> Nvml:
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
    """Return the UUIDs of all cards; their index is used for nothing else."""
    count = call(binding, "nvmlDeviceGetCount").value or 0
    handles = (call(binding, "nvmlDeviceGetHandleByIndex", index).value for index in range(count))
    uuids = (call(binding, "nvmlDeviceGetUUID", handle).value for handle in handles if handle is not None)
    return tuple(str(uuid) for uuid in uuids if uuid is not None)


def lock_name(bare: str, index: int) -> str:
    """Return a card's UUID as NVML spells it: NVML knows whether it is a slice."""
    candidates = nvml_uuids(bare, index, os.environ)
    try:
        uuid = open_nvml(candidates).ask("nvmlDeviceGetUUID").value
    except RunInvalid:  # every window reports it
        uuid = None
    return candidates[0] if uuid is None else str(uuid)


def cards_to_share(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a value of CUDA_VISIBLE_DEVICES for each usable card, without opening any.

    With a context on a card, this process would count as foreign to the process that measures there.
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
    # CUDA's indices equal NVML's only in PCI order; in any other order they are passed on for CUDA to read.
    if environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return visible.entries
    return tuple(known[int(entry)] for entry in visible.entries if int(entry) < len(known))


def _completed(entries: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return full UUIDs for shortened ones, up to the first unknown one: CUDA stops there too."""
    cards: list[str] = []
    for entry in entries:
        matches = [uuid for uuid in known if uuid.lower().startswith(entry.lower())]
        if len(matches) != 1:
            break
        cards += matches
    return tuple(cards)
