"""Rules about the device itself: launches, syncs, memory, an unfilled card, work outside operators."""

from perfsuite.diagnose.facts import (
    LAUNCH_BOUND,
    MEMORY_TIGHT,
    MINOR,
    SYNC_BOUND,
    Cause,
    Facts,
    is_small_batch,
    looped_calls,
    percent,
    seconds_told,
)
from perfsuite.units import Unit, show

_HOST_WORK = 0.20
_BUSY = 0.70


def launch_bound(facts: Facts) -> Cause | None:
    """Many short kernels, and the device waits for the next one."""
    share, kernel = facts.share("launch_gaps"), facts.number("kernel_seconds")
    is_short = facts.has("kernel_seconds") and kernel < facts.number("short_kernel_seconds")
    if share < LAUNCH_BOUND or not is_short or is_small_batch(facts):
        return None
    words = "operators" if not facts.is_gpu else "kernels"
    # A profiler sees all of a card's kernels; elsewhere the optimizer's are told apart.
    beside = "" if facts.reading.device.startswith("cuda") else " outside the optimizer"
    evidence = (
        f"launch gaps {percent(share)}; {facts.number('kernels_per_step'):,.0f} {words} a step{beside}, the "
        f"middle one takes {seconds_told(kernel)}"
    )
    looped = looped_calls(facts)
    if looped is not None:
        title = f"launch-bound: the same {words[:-1]} is called {looped['times']:,.0f} times a step"
        where = f"{evidence}; most at {looped['place']}"
        advice = (
            "Merge the loop into one call along the batch dimension ([B·N, …]), or torch.compile the step"
        )
        return Cause("launch-bound", title, where, advice, share)
    place = f"; {facts.number('launch_place_count'):,.0f} at {facts.text('launch_place')}"
    evidence += place if facts.has("launch_place") else ""
    advice = (
        f"Try a larger batch (now {facts.batch:.0f}), or torch.compile: it fuses what is launched one by one"
    )
    return Cause("launch-bound", f"launch-bound: many short {words}", evidence, advice, share)


def under_filled(facts: Facts) -> Cause | None:
    """A batch too small for the device."""
    share = facts.share("launch_gaps")
    if share < LAUNCH_BOUND or not is_small_batch(facts):
        return None
    used = facts.number("used_share")
    filled = f"; the card's units are used to {percent(used)}" if facts.has("used_share") else ""
    memory = facts.reading.peak_memory_bytes
    capacity = facts.number("memory_capacity_bytes")
    room = f", {percent(memory / capacity)} of the memory" if memory and capacity and facts.is_gpu else ""
    return Cause(
        "under-filled",
        f"under-filled: {facts.batch:.0f} samples a step are too few for the device",
        f"launch gaps {percent(share)}{filled}{room}",
        f"Try batch_size={_next_batch(facts.batch)} (now {facts.batch:.0f}): it takes hardly longer",
        share,
    )


def _next_batch(batch: float) -> int:
    size = 16
    while size < 8 * batch:
        size *= 2
    return size


def sync_bound(facts: Facts) -> Cause | None:
    """The host waits for the device in the middle of a step."""
    share = facts.share("sync_waits")
    if share < MINOR or not facts.is_gpu:
        return None
    title = (
        "sync-bound: the host waits for the device and launches nothing meanwhile"
        if share >= SYNC_BOUND
        else "host syncs: the host waits for the device now and then"
    )
    where = f" at {facts.text('sync_place')}" if facts.has("sync_place") else ""
    return Cause(
        "sync-bound",
        title,
        f"sync waits {percent(share)}; {facts.number('syncs'):.3g} a step{where}",
        "Keep the value on the device (.detach()) and read it every 50th step, not every step",
        share,
    )


def memory_tight(facts: Facts) -> Cause | None:
    """Nearly out of memory, or past it and retrying."""
    capacity = facts.number("memory_capacity_bytes")
    used = facts.number("resident_bytes") or facts.reading.peak_memory_bytes or 0.0
    retries = facts.reading.reported.get("alloc_retries", 0.0)
    filled = used / capacity if capacity else 0.0
    if filled < MEMORY_TIGHT and not retries:
        return None
    batch = facts.batch
    ladder = (
        f"Try batch_size={max(int(batch * 3 / 4), 1)}, then {max(int(batch / 2), 1)} with accumulation, "
        "then a smaller model or bfloat16"
        if batch > 1
        else "Try a smaller batch with accumulation, then a smaller model or bfloat16"
    )
    again = f"; the allocator retried {retries:.0f} times" if retries else ""
    return Cause(
        "memory-tight",
        f"memory-tight: {percent(filled)} of the memory is used",
        f"{show(used, Unit.BYTES)} of {show(capacity, Unit.BYTES)}{again}",
        ladder,
        min(max(filled, 0.0), 1.0) / 10 + (0.5 if retries else 0.0),
    )


def allocator_bound(facts: Facts) -> Cause | None:
    """Memory is fetched and given back in every step."""
    share = facts.share("allocator")
    if share < LAUNCH_BOUND:
        return None
    advice = (
        "Keep shapes constant (drop_last=True), or try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        if facts.is_gpu
        else "Reuse buffers (set_to_none=False, out=), or let malloc keep them: MALLOC_TRIM_THRESHOLD_=-1"
    )
    title = "allocator-bound: memory is fetched and given back in every step"
    return Cause("allocator-bound", title, f"allocator {percent(share)}", advice, share)


def host_bound(facts: Facts) -> Cause | None:
    """Work of the step outside of torch's operators."""
    share = facts.share("other")
    if share < _HOST_WORK or facts.is_gpu or "launch_gaps" not in facts.shares:
        return None
    return Cause(
        "host-bound",
        "host-bound: the step's own Python, or other libraries, between the operators",
        f"other {percent(share)}: no operator runs then",
        "Move that work into the loader's workers, or into tensors",
        share,
    )


def compute_bound(facts: Facts) -> Cause | None:
    """Nothing to gain around the kernels: they are the time."""
    share = facts.share("kernels") + facts.share("optimizer")
    if share < _BUSY:
        return None
    heavy = facts.share("optimizer")
    beside = f", {percent(heavy)} of it the optimizer's" if heavy >= 0.1 else ""
    return Cause(
        "compute-bound",
        "compute-bound: there is nothing to gain around the kernels",
        f"kernels {percent(share)}{beside}",
        "Only cheaper kernels help: bfloat16 or TF32, torch.compile, a smaller model",
        0.0,
    )
