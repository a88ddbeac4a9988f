"""Which card torch means: its UUID in NVML's spellings, and what CUDA_VISIBLE_DEVICES says about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_PREFIXES = ("GPU-", "MIG-")
Form = Literal["unset", "none", "indices", "uuids", "mig", "wrong"]


@dataclass(frozen=True)
class Visible:
    """CUDA_VISIBLE_DEVICES as CUDA reads it: up to the first entry that it does not know."""

    form: Form
    entries: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Visible":
        """Read the variable in any of its forms."""
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
        """Return what stands for the device that torch calls cuda:index."""
        return self.entries[index] if index < len(self.entries) else None


def _form(entry: str) -> Form:
    if entry.startswith("MIG-"):
        return "mig"
    if entry.startswith("GPU-"):
        return "uuids"
    if entry.isdecimal():
        return "indices"
    # An empty text and a negative number hide every device; so does a word, but nobody means that.
    return "none" if entry == "" or entry.lstrip("-").isdecimal() else "wrong"


def nvml_uuids(bare: str, index: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the UUIDs to try, in order: the slice the environment names, then as a card and as a slice.

    A slice that torch shows under its card's number must not be watched as the whole card.
    """
    number = bare
    for prefix in _PREFIXES:
        number = number.removeprefix(prefix)
    visible = Visible.from_environment(environment)
    entry = visible.entry(index) if visible.form == "mig" else None
    return (*((entry,) if entry else ()), *(f"{prefix}{number}" for prefix in _PREFIXES))


def contradiction(uuid: str, index: int, environment: Mapping[str, str]) -> str:
    """Say when the environment names another card than the one torch opened, "" when it does not."""
    visible = Visible.from_environment(environment)
    entry = visible.entry(index)
    # A UUID may be shortened to a beginning that no other card has.
    if visible.form != "uuids" or entry is None or uuid.lower().startswith(entry.lower()):
        return ""
    return f"CUDA_VISIBLE_DEVICES names {entry} as cuda:{index}, but torch opened {uuid}"


def order_told(environment: Mapping[str, str]) -> str:
    """Say how CUDA numbers the cards here; perfsuite itself goes by UUID."""
    order = environment.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    visible = Visible.from_environment(environment)
    shown = environment.get("CUDA_VISIBLE_DEVICES")
    told = {
        "unset": "CUDA sees every card",
        "none": "CUDA sees no card",
        "wrong": f"CUDA sees no card: {shown!r} is neither a number nor a UUID",
    }.get(visible.form, f"CUDA sees {', '.join(visible.entries)}")
    return f"{told}; CUDA numbers them by {order}, NVML by PCI bus, perfsuite goes by UUID"
