"""A reading in, the causes of its step time out, the heaviest first; pure, and says when there is none."""

from collections.abc import Mapping
from dataclasses import dataclass

from perfsuite.diagnose.device import (
    allocator_bound,
    compute_bound,
    host_bound,
    launch_bound,
    memory_tight,
    sync_bound,
    under_filled,
)
from perfsuite.diagnose.facts import Cause, Facts, Rule, transfer_bound
from perfsuite.diagnose.loader import data_bound, oversubscribed, restarted
from perfsuite.diagnose.ranks import communication_bound, shared_cores, straggler
from perfsuite.records import Reading

# One loader has one cause, the first that fits: too many workers also start slowly, slow starts also wait.
_LOADER: tuple[Rule, ...] = (oversubscribed, shared_cores, restarted, data_bound)
_DEVICE: tuple[Rule, ...] = (
    transfer_bound,
    launch_bound,
    under_filled,
    sync_bound,
    memory_tight,
    allocator_bound,
    host_bound,
    straggler,
    communication_bound,
)


@dataclass(frozen=True)
class Diagnosis:
    """Where a step's time went, and why."""

    shares: Mapping[str, float]
    causes: tuple[Cause, ...]

    @property
    def likely(self) -> Cause | None:
        """Return the cause that takes the largest part of the step."""
        return self.causes[0] if self.causes else None


def diagnose(reading: Reading) -> Diagnosis:
    """Return the causes that a reading's shares and clues speak for."""
    facts = Facts(reading)
    loader = next((cause for rule in _LOADER if (cause := rule(facts)) is not None), None)
    found = [cause for rule in _DEVICE if (cause := rule(facts)) is not None]
    if loader is not None:
        found.append(loader)
    found.sort(key=lambda cause: -cause.weight)
    if not found and (bound := compute_bound(facts)) is not None:
        found = [bound]
    return Diagnosis(reading.shares, tuple(found))
