"""Rules about ranks that work together: a straggler and why, collectives, cores shared by many loaders."""

from collections.abc import Mapping, Sequence

from perfsuite.diagnose.facts import Cause, Facts, percent, seconds_told
from perfsuite.statistics import median

_SKEWED = 0.10
_COMMUNICATING = 0.15
_WAITING = 0.05
_MORE = 0.05  # a rank's share that is this much above the others' explains it
_SLOW_CLOCK = 0.95


def straggler(facts: Facts) -> Cause | None:
    """One rank for which the others wait."""
    ranks, skew = facts.reading.ranks, facts.reading.rank_skew
    if skew is None or skew < _SKEWED:
        return None
    slowest = max(range(len(ranks)), key=lambda rank: ranks[rank].get("own_seconds", 0.0))
    others = [figures for rank, figures in enumerate(ranks) if rank != slowest]
    usual = median([figures["own_seconds"] for figures in others if "own_seconds" in figures])
    why, advice = _why(ranks[slowest], others)
    return Cause(
        "straggler",
        f"straggler: rank {slowest} of {len(ranks)}, {why}",
        f"its own work takes {seconds_told(ranks[slowest]['own_seconds'])} a step, the others' "
        f"{seconds_told(usual)}; skew {percent(skew)}",
        advice,
        skew,
    )


def _why(slow: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> tuple[str, str]:
    """Say what sets the slow rank apart, and what to do about that."""

    def usual(name: str) -> float:
        known = [figures[name] for figures in others if name in figures]
        return median(known) if known else 0.0

    waited = slow.get("data_wait", 0.0)
    if waited > usual("data_wait") + _MORE:
        return (
            f"which waits for its loader {percent(waited)} of the time (the others "
            f"{percent(usual('data_wait'))})",
            "Look at its shard of the data: larger samples, a slower disk, or fewer workers than the others",
        )
    queued = slow.get("queued_share", 0.0)
    if queued > usual("queued_share") + _MORE:
        return (
            f"which was kept from a core {percent(queued)} of the time (the others "
            f"{percent(usual('queued_share'))})",
            "Give ranks cores of their own (taskset, numactl), or start fewer loader workers",
        )
    clock = slow.get("clock_mhz")
    if clock is not None and clock < _SLOW_CLOCK * usual("clock_mhz"):
        return (
            f"whose card runs at {clock:.0f} MHz (the others at {usual('clock_mhz'):.0f})",
            "Look at its temperature and power limit: nvidia-smi -q -d PERFORMANCE",
        )
    return (
        "whose own work takes longer",
        "Look at what only it does (logging, checkpoints, evaluation on one rank), and at longer or larger "
        "samples in its shard",
    )


def communication_bound(facts: Facts) -> Cause | None:
    """Collectives that nothing hides, on ranks that are equally fast, or on modelled cards."""
    share = facts.share("collectives")
    skew = facts.reading.rank_skew or 0.0
    # What the fast ranks wait for a slow one is no communication: the slowest rank's share is looked at.
    if share < _COMMUNICATING or skew > share:
        return None
    how = "modelled_" if facts.reading.modelled else ""
    hidden = facts.reading.reported.get(f"{how}collective_hidden_share", 0.0)
    spent = facts.reading.reported.get(f"{how}collective_seconds", 0.0)
    return Cause(
        "communication-bound",
        "communication-bound: the step waits for its collectives",
        f"collectives {seconds_told(spent)} a step, {percent(hidden)} of it hidden; {percent(share)} of the "
        "step waits",
        "Send less or more rarely: gradient accumulation with no_sync, a bf16 compression hook, a larger "
        "batch for each rank; or hide more: smaller buckets (bucket_cap_mb)",
        share,
    )


def shared_cores(facts: Facts) -> Cause | None:
    """Loaders of all ranks that compete for the cores of one machine."""
    ranks = len(facts.reading.ranks)
    workers, cores = int(facts.number("num_workers")), int(facts.number("cores", 1))
    if not ranks or facts.waited < _WAITING or ranks * (workers + 1) <= cores:
        return None
    each = max(cores // ranks - 1, 0)
    waiting = sum(figures.get("data_wait", 0.0) >= _WAITING for figures in facts.reading.ranks)
    return Cause(
        "shared-cores",
        f"data-bound: {ranks} ranks with {workers} loader workers each share {cores} cores",
        f"data wait {percent(facts.waited)} on the worst rank, {waiting} of {ranks} ranks wait",
        f"Try num_workers={each} a rank (now {workers}): one core is the rank's own; prepare data once, or "
        "keep it on the device",
        facts.waited,
    )
