"""The rules of the diagnosis: each looks at a reading's shares and clues and names one cause, with advice."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from perfsuite.records import Reading
from perfsuite.units import Unit, show

DATA_BOUND, LAUNCH_BOUND, TRANSFER_BOUND, SYNC_BOUND = 0.05, 0.15, 0.10, 0.10
HIGHLY = 0.20  # of the step: from here on the input is what a training is bound by
MEMORY_TIGHT = 0.90
_UNDER_FILLED_BATCH = 16
_LOOPED = 16  # the same kernel from the same line this often in a step is worth naming the line
_LOOPED_SURELY = 50  # no network is that deep; fewer may be layers, and a small batch the likelier reason
MINOR = 0.02  # of the step: less is not worth a line
_HEADROOM = 1.25  # workers do not keep pace evenly
_FIRST_STEP = 3  # without workers, they are the first thing to try unless samples are slower than this
_FEW_WORKERS, _MANY_WORKERS = 8, 32


@dataclass(frozen=True)
class Cause:
    """One thing that costs time, what speaks for it, what to try, and how much of the step it takes."""

    name: str  # also the anchor in docs/diagnosis.md
    title: str
    evidence: str
    advice: str
    weight: float  # share of the step's time, by which causes are ranked


class Facts:
    """A reading's shares and numbers under short names."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.shares = reading.shares
        self.waited = reading.data_wait or 0.0
        self.batch = reading.samples / reading.steps if reading.steps else 0.0
        self.is_gpu = reading.modelled or reading.device.startswith("cuda")
        self.step_seconds = reading.wall_seconds / reading.steps if reading.steps else 0.0

    def share(self, name: str) -> float:
        """Return a share of the step, 0 where the device does not tell it."""
        return self.shares.get(name, 0.0)

    def number(self, name: str, default: float = 0.0) -> float:
        """Return a clue that is a number."""
        value = self.reading.clues.get(name, default)
        return value if isinstance(value, float | int) else default

    def text(self, name: str) -> str:
        """Return a clue that is a text."""
        return str(self.reading.clues.get(name, ""))

    def has(self, name: str) -> bool:
        """Tell whether there is such a clue."""
        return name in self.reading.clues

    @property
    def useful_workers(self) -> int:
        """Return the number of workers beyond which more have never helped on this host."""
        return max(_FEW_WORKERS, min(int(self.number("cores", 1)), _MANY_WORKERS))

    @property
    def helpful_workers(self) -> int:
        """Return the most workers worth trying: as many as there are cores where samples compute."""
        is_computing = self.number("sample_cpu_share") >= 0.5
        return (
            min(self.useful_workers, max(int(self.number("cores", 1)), 1))
            if is_computing
            else self.useful_workers
        )

    @property
    def needed_workers(self) -> int:
        """Return how many workers would keep up with the step, from the cost of a batch and of the step."""
        resident = self.number("resident_step_seconds")
        batch = self.number("batch_seconds")
        return math.ceil(_HEADROOM * batch / resident) if resident > 0 and batch > 0 else 0


Rule = Callable[[Facts], Cause | None]


def oversubscribed(facts: Facts) -> Cause | None:
    """More worker processes than can ever help."""
    workers, useful = int(facts.number("num_workers")), facts.useful_workers
    if workers <= useful:
        return None
    needed = min(max(facts.needed_workers, 1), useful)
    return Cause(
        "oversubscribed-workers",
        f"{workers} loader workers share {int(facts.number('cores', 1))} cores",
        f"data wait {_percent(facts.waited)}; more than {useful} workers only compete with each other, take "
        "long to start and hold their batches in memory",
        f"Try num_workers={needed} (now {workers})",
        max(facts.waited, 0.01),
    )


def restarted(facts: Facts) -> Cause | None:
    """Starved at the start of every epoch."""
    at_starts = facts.number("epoch_wait_share")
    if facts.waited < DATA_BOUND or at_starts < 0.5 or facts.number("epoch_steps") < 2:
        return None
    if facts.needed_workers > max(facts.number("num_workers"), 1.0):
        return None  # the loader is too slow all the time; workers that deliver together only make it look so
    every = f"every {facts.number('epoch_steps'):.0f} steps ({_seconds(facts.number('epoch_seconds'))})"
    workers = int(facts.number("num_workers"))
    evidence = (
        f"data wait {_percent(facts.waited)}, {_percent(at_starts)} of it for the first batch of an epoch"
    )
    if workers and not facts.number("persistent_workers"):
        advice = f"Try persistent_workers=True: {workers} workers start anew at each epoch"
        title = f"the loader's workers are started again {every}"
    else:
        advice = "Keep the loader's state across epochs, or make epochs longer"
        title = f"the training starves {every}, where an epoch begins"
    return Cause("periodic-starvation", title, evidence, advice, facts.waited)


def data_bound(facts: Facts) -> Cause | None:
    """Blocked in the loader."""
    if facts.waited < DATA_BOUND:
        return None
    word = "" if facts.waited >= HIGHLY else "partly "
    title, advice = _which_loader(facts)
    return Cause("data-bound", f"{word}data-bound: {title}", _proof(facts), advice, facts.waited)


def _proof(facts: Facts) -> str:
    waited = f"data wait {_percent(facts.waited)}"
    resident = facts.number("resident_step_seconds")
    if resident > 0 and facts.step_seconds > 0:
        gain = max(1 - resident / facts.step_seconds, 0.0)
        how = "predicted" if facts.reading.modelled else "proven"
        return (
            f"{waited}; on one resident batch a step takes {_seconds(resident)} instead of "
            f"{_seconds(facts.step_seconds)}: {_percent(gain)} is the loader's ({how} by a rerun)"
        )
    if facts.has("resident_refusal"):
        return (
            f"{waited}; not proven: the step refused the same batch twice ({facts.text('resident_refusal')})"
        )
    return waited


def _which_loader(facts: Facts) -> tuple[str, str]:  # noqa: PLR0911  one return for each kind of slowness
    """Say why the loader is slow, and what to do about that."""
    workers, needed, useful = int(facts.number("num_workers")), facts.needed_workers, facts.helpful_workers
    batch = f"a batch takes {_seconds(facts.number('batch_seconds'))} to make"
    sample = _seconds(facts.number("sample_seconds"))
    slowest = facts.number("slowest_sample_seconds")
    is_one_slow = facts.number("slowest_sample_share") >= 0.5 and facts.number("samples_timed") >= 4
    if is_one_slow:
        return (
            "one slow sample",
            f"Look at what `__getitem__` does for it: the slowest of {facts.number('samples_timed'):.0f} "
            f"samples took {_seconds(slowest)}, the middle one {sample}",
        )
    if not facts.has("batch_seconds"):
        more = f"num_workers={min(max(2 * workers, 2), useful)} (now {workers})"
        return "the loader", f"Try {more}, or data that is prepared beforehand"
    if workers == 0 and needed <= _FIRST_STEP * facts.useful_workers:
        few = f"num_workers={min(max(needed, 1), useful)} (now 0), persistent_workers=True"
        return "no workers", f"Try {few}: {batch}, and nobody makes one while the step runs"
    if facts.has("sample_cpu_share") and facts.number("sample_cpu_share") < 0.5:
        read = facts.number("worker_read_bytes_per_s")
        disk = f" (workers read {show(read, Unit.BYTES)}/s from storage)" if read else ""
        return (
            "samples wait, for a disk or another service",
            f"Cache or shard the data, or hide the wait: num_workers={min(max(needed, workers + 1), useful)} "
            f"(now {workers}); a sample takes {sample}, {_percent(facts.number('sample_cpu_share'))} of it "
            f"computing{disk}",
        )
    if needed > max(useful, workers):
        return (
            "slow samples",
            f"Make samples cheaper or prepare them once: {batch}, so {needed} workers would be needed and "
            f"{useful} are the most that help on {int(facts.number('cores', 1))} cores",
        )
    if workers < needed:
        return "too few workers", f"Try num_workers={min(needed, useful)} (now {workers}): {batch}"
    full = facts.number("worker_cpu_share")
    ahead = int(facts.number("prefetch_factor"))
    if full >= 0.85:
        return (
            "workers at full CPU",
            f"Make samples cheaper: {batch}, the workers use {_percent(full)} of theirs",
        )
    return "uneven batches", f"Try prefetch_factor={max(2 * ahead, 4)} (now {ahead}): {batch} on average"


def transfer_bound(facts: Facts) -> Cause | None:
    """Waiting for copies to the device."""
    share = facts.share("transfer")
    pageable = facts.number("pageable_bytes") or facts.number("pageable_copies")
    if share < (MINOR if pageable else TRANSFER_BOUND):
        return None
    where = f" at {facts.text('copy_place')}" if facts.has("copy_place") else ""
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
    return Cause("transfer-bound", title, f"transfer {_percent(share)}{size}{where}", advice, share)


def _percent(share: float) -> str:
    return show(share, Unit.FRACTION)


def _seconds(seconds: float) -> str:
    return show(seconds, Unit.SECONDS)


def looped_calls(facts: Facts) -> Mapping[str, object] | None:
    """Return the line that launches the same kernel many times a step, None where none does."""
    times = facts.number("repeated_kernel_count")
    return {"times": times, "place": facts.text("repeated_kernel_place")} if times >= _LOOPED else None


def is_small_batch(facts: Facts) -> bool:
    """Tell whether few samples a step are the likelier reason for small kernels than a loop."""
    looped = facts.number("repeated_kernel_count") >= _LOOPED_SURELY
    return 1 < facts.batch <= _UNDER_FILLED_BATCH and not looped
