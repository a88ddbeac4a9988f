"""Find the causes of a reading's step time, the heaviest first; there may be none."""

from collections.abc import Mapping
from dataclasses import dataclass

from perfsuite.diagnose.device import (
    allocator_bound,
    compute_bound,
    host_bound,
    launch_bound,
    memory_tight,
    sync_bound,
    transfer_bound,
    under_filled,
)
from perfsuite.diagnose.facts import Cause, Facts, Rule
from perfsuite.diagnose.loader import data_bound, oversubscribed, restarted, shared_cores
from perfsuite.diagnose.ranks import communication_bound, straggler
from perfsuite.records import Reading

# A loader gets one cause, the first that applies: too many workers also start slowly, and slow starts also
# show as waiting.
_LOADER: tuple[Rule, ...] = (oversubscribed, shared_cores, restarted, data_bound)
_DEVICE: tuple[Rule, ...] = (
    transfer_bound,
    launch_bound,
    under_filled,
    sync_bound,
    memory_tight,
    allocator_bound,
    host_bound,
)
_RANKS: tuple[Rule, ...] = (straggler, communication_bound)


@dataclass(frozen=True)
class Diagnosis:
    """Where a step's time went, and why."""

    shares: Mapping[str, float]
    causes: tuple[Cause, ...]

    @property
    def likely(self) -> Cause | None:
        """Return the cause that takes the largest share of the step."""
        return self.causes[0] if self.causes else None


def diagnose(reading: Reading) -> Diagnosis:
    """Return the causes that a reading's shares and clues indicate."""
    facts = Facts(reading)
    causes = [cause for rule in _DEVICE if (cause := rule(facts)) is not None]
    if reading.ranks or "collectives" in reading.shares:
        causes += [cause for rule in _RANKS if (cause := rule(facts)) is not None]
    if reading.kind == "loop":
        loader = (cause for rule in _LOADER if (cause := rule(facts)) is not None)
        causes += [cause for cause in (next(loader, None),) if cause is not None]
    causes.sort(key=lambda cause: -cause.weight)
    if not causes and (bound := compute_bound(facts)) is not None:
        causes = [bound]
    return Diagnosis(reading.shares, tuple(causes))
