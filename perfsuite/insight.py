"""What a device noticed beside its figures: where a step's time went, and clues to why; records only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# In the order they are told. A device that cannot tell one leaves it out; what is there adds up to 1.
SHARES: Mapping[str, str] = {
    "data_wait": "data wait",
    "transfer": "host→device transfer",
    "launch_gaps": "launch gaps",
    "kernels": "kernels",
    "sync_waits": "sync waits",
    "optimizer": "optimizer",
    "collective": "gradient exchange",
    "allocator": "allocator",
    "other": "other",
}

Clue = float | str


@dataclass(frozen=True)
class Insight:
    """Figures to report, shares of the step's wall time, and clues for the diagnosis."""

    figures: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    clues: Mapping[str, Clue] = field(default_factory=dict)


def whole(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares that add up to 1: what is missing is other, what is too much is scaled away."""
    known = {name: max(share, 0.0) for name, share in shares.items() if name in SHARES}
    total = sum(known.values())
    if not known or total <= 0:
        return {}
    if total >= 1:
        return {name: share / total for name, share in known.items()}
    known["other"] = known.get("other", 0.0) + 1 - total
    return known


def with_data_wait(shares: Mapping[str, float], waited: float | None) -> dict[str, float]:
    """Return shares with the wait for data as the window saw it, the rest scaled to what that leaves."""
    if waited is None:
        return dict(shares)
    rest = {name: share for name, share in shares.items() if name != "data_wait"}
    total = sum(rest.values())
    if total <= 0:
        return {"data_wait": waited, "other": 1 - waited}
    return {"data_wait": waited, **{name: share * (1 - waited) / total for name, share in rest.items()}}
