"""Readings for tests, with figures given as attributes: step_seconds=0.1, speedup_low=1.2."""

from dataclasses import replace

from perfsuite.records import Reading

_METRICS = {
    "step_seconds": "step_time",
    "idle_stretch_seconds": "idle_stretch",
    "peak_memory_bytes": "peak_memory",
}
_PLAIN = (
    "samples_per_s",
    "utilization",
    "utilization_swing",
    "kernel_busy",
    "data_wait",
    "speedup",
    "difference",
)
_PLAIN += ("rank_skew", "scaling_efficiency")
_INTERVALS = ("speedup", "scaling_efficiency")


def make_reading(name, kind, device, steps, warmup_steps, samples, wall_seconds, rounds, **given):
    """Return a reading; any device but a CPU is an accelerator."""
    bare = Reading(name, kind, device, steps, warmup_steps, samples, wall_seconds, rounds)
    return changed(replace(bare, is_accelerator=not device.startswith("cpu")), **given)


def changed(reading, **given):
    """Return a copy of a reading with other figures or fields."""
    figures = {_METRICS.get(key, key): given.pop(key) for key in list(given) if key in (*_METRICS, *_PLAIN)}
    figures |= given.pop("counts", {}) | given.pop("relative", {})
    intervals = dict(reading.intervals)
    for name in _INTERVALS:
        if f"{name}_low" in given or f"{name}_high" in given:
            low, high = given.pop(f"{name}_low", None), given.pop(f"{name}_high", None)
            if low is not None or high is not None:
                intervals[name] = (low if low is not None else high, high if high is not None else low)
    return replace(reading.with_figures(**figures), intervals=intervals, **given)
