"""Rules about the device: copies, launches, syncs, memory, an under-filled card, work of the host."""

from collections.abc import Mapping

from perfsuite.diagnose.facts import MINOR, Cause, Facts, percent, seconds_text
from perfsuite.units import Unit, show

# The share of the step from which each one is a cause.
_LAUNCH_BOUND, _TRANSFER_BOUND, _SYNC_BOUND, _HOST_WORK, _BUSY = 0.15, 0.10, 0.10, 0.20, 0.70
_MEMORY_TIGHT = 0.90
_UNDER_FILLED_BATCH = 16
# Calling the next operator through a module or an optimizer takes some microseconds of Python; work of the
# step's own, spread over its operators, takes longer.
_PYTHON_PER_OPERATOR = 25e-6
_LOOPED = 16  # if one line launches the same kernel this often in a step, the line is worth naming
_LOOPED_SURELY = 50  # no network is that deep; fewer may be layers, and a small batch the likelier cause


def launch_bound(facts: Facts) -> Cause | None:
    """Detect many short kernels, so that the device waits for the next launch."""
    share, kernel = facts.share("launch_gaps"), facts.number("kernel_seconds")
    is_short = "kernel_seconds" in facts.clues and kernel < facts.number("short_kernel_seconds")
    if share < _LAUNCH_BOUND or not is_short or is_small_batch(facts):
        return None
    words = "operators" if not facts.is_gpu else "kernels"
    scope = "" if "kernels_of_optimizer" in facts.clues else " outside the optimizer"
    evidence = (
        f"launch gaps {percent(share)}; {facts.number('kernels_per_step'):,.0f} {words} a step{scope}, the "
        f"median one takes {seconds_text(kernel)}"
    )
    looped = looped_calls(facts)
    if looped is not None:
        title = f"launch-bound: the same {words[:-1]} is called {looped['times']:,.0f} times a step"
        where = f"{evidence}; most at {looped['place']}"
        advice = (
            "Merge the loop into one call along the batch dimension ([B·N, …]), or torch.compile the step"
        )
        return Cause("launch-bound", title, where, advice, share, share="launch_gaps", explains=("kernels",))
    place = f"; {facts.number('launch_place_count'):,.0f} at {facts.text('launch_place')}"
    evidence += place if "launch_place" in facts.clues else ""
    advice = (
        f"Try a larger batch (now {facts.batch:.0f}), or torch.compile: it fuses what is launched one by one"
    )
    return Cause(
        "launch-bound",
        f"launch-bound: many short {words}",
        evidence,
        advice,
        share,
        share="launch_gaps",
        explains=("kernels",),
    )


def under_filled(facts: Facts) -> Cause | None:
    """Detect a batch that is too small for the device."""
    gaps, python = facts.share("launch_gaps"), _python_of_calls(facts)
    if gaps < _LAUNCH_BOUND or not is_small_batch(facts):
        return None
    share = gaps + python  # a larger batch pays both just once
    calls = f", Python that calls operators {percent(python)}" if python >= MINOR else ""
    used = facts.number("used_share")
    filled = f"; {percent(used)} of the card's units are used" if "used_share" in facts.clues else ""
    memory = facts.reading.peak_memory_bytes
    capacity = facts.number("memory_capacity_bytes")
    room = f", {percent(memory / capacity)} of the memory" if memory and capacity and facts.is_gpu else ""
    return Cause(
        "under-filled",
        f"under-filled: {facts.batch:.0f} samples a step are too few for the device",
        f"launch gaps {percent(gaps)}{calls}{filled}{room}",
        f"Try batch_size={_next_batch(facts.batch)} (now {facts.batch:.0f}): it takes hardly longer",
        share,
        share="launch_gaps",
        explains=("kernels",),
    )


def _python_of_calls(facts: Facts) -> float:
    """Return the share of a CPU's step that is only Python on its way to the next operator, else 0."""
    share, operators = facts.share("other"), facts.number("kernels_per_step")
    is_short = operators > 0 and share * facts.step_seconds / operators < _PYTHON_PER_OPERATOR
    return share if is_short and not facts.is_gpu else 0.0


def _next_batch(batch: float) -> int:
    size = 16
    while size < 8 * batch:
        size *= 2
    return size


def sync_bound(facts: Facts) -> Cause | None:
    """Detect a host that waits for the device in the middle of a step."""
    share = facts.share("sync_waits")
    if share < MINOR or not facts.is_gpu:
        return None
    title = (
        "sync-bound: the host waits for the device and launches nothing meanwhile"
        if share >= _SYNC_BOUND
        else "host syncs: the host waits for the device now and then"
    )
    where = f" at {facts.text('sync_place')}" if "sync_place" in facts.clues else ""
    return Cause(
        "sync-bound",
        title,
        f"sync waits {percent(share)}; {facts.number('syncs'):.3g} a step{where}",
        "Keep the value on the device (.detach()) and read it every 50th step, not every step",
        share,
        share="sync_waits",
        explains=(
            "syncs",
            "d2h_bytes",
        ),
    )


def memory_tight(facts: Facts) -> Cause | None:
    """Detect memory that is nearly full, or an allocator that had to retry."""
    capacity = facts.number("memory_capacity_bytes")
    used = facts.number("resident_bytes") or facts.reading.peak_memory_bytes or 0.0
    retries = facts.reading.reported.get("alloc_retries", 0.0)
    filled = used / capacity if capacity else 0.0
    if filled < _MEMORY_TIGHT and not retries:
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
    """Detect memory that is allocated from the system and returned in every step."""
    share = facts.share("allocator")
    if share < _LAUNCH_BOUND:
        return None
    advice = (
        "Keep shapes constant (drop_last=True), or try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        if facts.is_gpu
        else "Reuse buffers (set_to_none=False, out=), or let malloc keep them: MALLOC_TRIM_THRESHOLD_=-1"
    )
    title = "allocator-bound: memory is taken from the system and returned in every step"
    return Cause("allocator-bound", title, f"allocator {percent(share)}", advice, share, share="allocator")


def host_bound(facts: Facts) -> Cause | None:
    """Detect work of the step outside torch's operators."""
    share = facts.share("other")
    if share < _HOST_WORK or facts.is_gpu or "launch_gaps" not in facts.shares:
        return None
    if is_small_batch(facts) and _python_of_calls(facts):
        return None
    return Cause(
        "host-bound",
        "host-bound: the step's own Python, or other libraries, between the operators",
        f"other {percent(share)}: no operator runs in this time",
        "Move that work into the loader's workers, or into tensors",
        share,
        share="other",
    )


def compute_bound(facts: Facts) -> Cause | None:
    """Detect a step whose time is the kernels themselves."""
    share = facts.share("kernels") + facts.share("optimizer")
    if share < _BUSY:
        return None
    heavy = facts.share("optimizer")
    optimizer = f", {percent(heavy)} of it the optimizer" if heavy >= 0.1 else ""
    return Cause(
        "compute-bound",
        "compute-bound: there is nothing to gain around the kernels",
        f"kernels {percent(share)}{optimizer}",
        "Only cheaper kernels help: bfloat16 or TF32, torch.compile, a smaller model",
        0.0,
        share="kernels",
    )


def transfer_bound(facts: Facts) -> Cause | None:
    """Detect waiting for copies to the device."""
    share = facts.share("transfer")
    pageable = facts.number("pageable_bytes") or facts.number("pageable_copies")
    if share < (MINOR if pageable else _TRANSFER_BOUND):
        return None
    where = f" at {facts.text('copy_place')}" if "copy_place" in facts.clues else ""
    if pageable:
        title = "transfer-bound: copies from pageable memory block the host"
        advice = "Try pin_memory=True in the loader and .to(device, non_blocking=True)"
    elif facts.number("blocking_copies"):
        title = "transfer-bound: copies to the device block the host"
        advice = "Try .to(device, non_blocking=True): the batch is pinned already"
    else:
        title = "transfer-bound: copies to the device are not hidden behind kernels"
        advice = "Move smaller types (uint8, bfloat16), or keep data that fits on the device"
    moved = facts.number("pageable_bytes") + facts.number("pinned_bytes")
    size = f" for {show(moved, Unit.BYTES)} a step" if moved else ""
    return Cause(
        "transfer-bound",
        title,
        f"transfer {percent(share)}{size}{where}",
        advice,
        share,
        share="transfer",
        explains=(
            "blocking_copies",
            "h2d_bytes",
            "d2h_bytes",
        ),
    )


def looped_calls(facts: Facts) -> Mapping[str, object] | None:
    """Return the line that launches the same kernel many times a step, None if there is none."""
    times = facts.number("repeated_kernel_count")
    return {"times": times, "place": facts.text("repeated_kernel_place")} if times >= _LOOPED else None


def is_small_batch(facts: Facts) -> bool:
    """Return whether small kernels are more likely due to few samples per step than to a loop."""
    looped = facts.number("repeated_kernel_count") >= _LOOPED_SURELY
    return 1 < facts.batch <= _UNDER_FILLED_BATCH and not looped
