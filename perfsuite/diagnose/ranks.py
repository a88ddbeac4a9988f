"""Rules about several ranks: a straggler and why it is slow, and collectives that are not hidden."""

from collections.abc import Mapping, Sequence

from perfsuite.diagnose.facts import Cause, Facts, percent, seconds_text
from perfsuite.statistics import median

_SKEWED = 0.10
_COMMUNICATING = 0.15
_WAITING = 0.05
_MORE = 0.05  # a rank whose share is this much above the others' is slow because of it
_SLOW_CLOCK = 0.95


def straggler(facts: Facts) -> Cause | None:
    """Detect a rank that the others wait for."""
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
        f"its own work takes {seconds_text(ranks[slowest]['own_seconds'])} a step, that of the others "
        f"{seconds_text(usual)}; skew {percent(skew)}",
        advice,
        skew,
    )


def _why(slow: Mapping[str, float], others: Sequence[Mapping[str, float]]) -> tuple[str, str]:
    """Return how the slow rank differs from the others, and what to do about it."""

    def usual(name: str) -> float:
        known = [figures[name] for figures in others if name in figures]
        return median(known) if known else 0.0

    waited = slow.get("data_wait", 0.0)
    if waited > usual("data_wait") + _MORE:
        return (
            f"which waits for its loader {percent(waited)} of the time (the others "
            f"{percent(usual('data_wait'))})",
            "Check its shard of the data: larger samples, a slower disk, or fewer workers than the others",
        )
    queued = slow.get("queued_share", 0.0)
    if queued > usual("queued_share") + _MORE:
        return (
            f"which waited for a core {percent(queued)} of the time (the others "
            f"{percent(usual('queued_share'))})",
            "Give each rank its own cores (taskset, numactl), or start fewer loader workers",
        )
    clock = slow.get("clock_mhz")
    if clock is not None and clock < _SLOW_CLOCK * usual("clock_mhz"):
        return (
            f"whose card runs at {clock:.0f} MHz (the others at {usual('clock_mhz'):.0f})",
            "Check its temperature and power limit: nvidia-smi -q -d PERFORMANCE",
        )
    return (
        "whose own work takes longer",
        "Check what only this rank does (logging, checkpoints, evaluation), and whether its shard has longer "
        "or larger samples",
    )


def communication_bound(facts: Facts) -> Cause | None:
    """Detect collectives that are not hidden, on equally fast ranks or on modelled cards."""
    share = facts.share("collectives")
    skew = facts.reading.rank_skew or 0.0
    # Fast ranks that wait for a slow one are not communicating: the share is that of the slowest rank.
    if share < _COMMUNICATING or skew > share:
        return None
    how = "modelled_" if facts.reading.modelled else ""
    hidden = facts.reading.reported.get(f"{how}collective_hidden_share", 0.0)
    spent = facts.reading.reported.get(f"{how}collective_seconds", 0.0)
    return Cause(
        "communication-bound",
        "communication-bound: the step waits for its collectives",
        f"collectives {seconds_text(spent)} a step, {percent(hidden)} of it hidden; {percent(share)} of the "
        "step waits",
        "Send less or more rarely: gradient accumulation with no_sync, a bf16 compression hook, a larger "
        "batch for each rank; or hide more: smaller buckets (bucket_cap_mb)",
        share,
        share="collectives",
    )
