"""The readings of all ranks become one: totals, the worst rank's figures, and how far the ranks lie apart."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from perfsuite.records import Reading

_SUMMED = ("queued_seconds", "alloc_retries", "device_allocations")


def join(readings: Sequence[Reading]) -> Reading:
    """Return the reading of the whole: what holds for it holds for its slowest and fullest rank."""
    first = readings[0]
    figures = tuple(rank_figures(reading) for reading in readings)
    wall = max(reading.wall_seconds for reading in readings)
    samples = sum(reading.samples for reading in readings)
    slowest = max(range(len(readings)), key=lambda rank: figures[rank].get("own_seconds", 0.0))
    return replace(
        first,
        samples=samples,
        wall_seconds=wall,
        rounds=max((reading.rounds for reading in readings), key=sum),
        samples_per_s=samples / wall if wall > 0 else None,
        step_seconds=_worst(readings, "step_seconds", max),
        utilization=_worst(readings, "utilization", min),
        utilization_swing=_worst(readings, "utilization_swing", max),
        idle_stretch_seconds=_worst(readings, "idle_stretch_seconds", max),
        peak_memory_bytes=_worst(readings, "peak_memory_bytes", max),
        data_wait=_worst(readings, "data_wait", max),
        difference=_worst(readings, "difference", max),
        speedup=_worst(readings, "speedup", min),
        speedup_low=_worst(readings, "speedup_low", min),
        speedup_high=_worst(readings, "speedup_high", min),
        rank_skew=skew(figures),
        reported=_reported(readings),
        notes=_told([reading.notes for reading in readings]),
        invalid=_told([reading.invalid for reading in readings]),
        series=readings[slowest].series,
        memory_series=readings[slowest].memory_series,
        shares=readings[slowest].shares,
        clues={**readings[slowest].clues, "slowest_rank": float(slowest)},
        ranks=figures,
        without=None if first.without is None else join([r.without for r in readings if r.without]),
    )


def rank_figures(reading: Reading) -> Mapping[str, float]:
    """Return one rank's figures; its own time is the step less what it waited for the others."""
    figures = {
        "samples_per_s": reading.samples_per_s,
        "step_seconds": reading.step_seconds,
        "utilization": reading.utilization,
        "peak_memory_bytes": reading.peak_memory_bytes,
        "data_wait": reading.data_wait,
        "collective_seconds": reading.reported.get("collective_seconds"),
        "collective_exposed_seconds": reading.reported.get("collective_exposed_seconds"),
        "queued_share": _share(reading.reported.get("queued_seconds"), reading.wall_seconds),
        "clock_mhz": reading.reported.get("sm_clock_mhz"),
    }
    if reading.step_seconds is not None:
        exposed = reading.clues.get("collective_exposed_share", 0.0)
        waited = exposed if isinstance(exposed, float | int) else 0.0
        figures["own_seconds"] = reading.step_seconds * (1 - waited)
    return {name: value for name, value in figures.items() if value is not None}


def skew(figures: Sequence[Mapping[str, float]]) -> float | None:
    """Return the share of the slowest rank's own time that the fastest rank has nothing to do for it."""
    own = [one["own_seconds"] for one in figures if "own_seconds" in one]
    if len(own) < 2 or max(own) <= 0:
        return None
    return (max(own) - min(own)) / max(own)


def _worst(readings: Sequence[Reading], field: str, pick: object) -> float | None:
    """Return the worst figure of all ranks; one that a rank lacks is known of none."""
    values = [getattr(reading, field) for reading in readings]
    return None if None in values else float(pick(values))  # type: ignore[operator]


def _reported(readings: Sequence[Reading]) -> dict[str, float]:
    """Return the first rank's figures, with totals and the ranks' mean collectives."""
    reported = dict(readings[0].reported)
    for name in _SUMMED:
        if name in reported:
            reported[name] = sum(reading.reported.get(name, 0.0) for reading in readings)
    for name in ("collective_seconds", "collective_exposed_seconds", "collective_hidden_share"):
        known = [reading.reported[name] for reading in readings if name in reading.reported]
        if known:
            reported[name] = sum(known) / len(known)
    return reported


def _told(texts: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Say once what all ranks say, and of the rest who says it."""
    common = [text for text in texts[0] if all(text in others for others in texts)]
    own = [f"rank {rank}: {text}" for rank, said in enumerate(texts) for text in said if text not in common]
    return (*common, *own)


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else part / whole
