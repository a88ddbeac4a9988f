"""Rules about the loader: each checks the facts and returns one cause of waiting for data, with advice."""

from perfsuite.diagnose.facts import MINOR, Cause, Facts, percent, seconds_text
from perfsuite.units import Unit, show

_DATA_BOUND = 0.05  # share of the step from which waiting for data is reported
_HIGHLY = 0.20  # from this share on, the training is bound by its input
_FIRST_STEP = 3  # if more than this times the useful workers were needed, cheaper samples come first
_HANDING_OVER = 1e-3  # seconds; a worker's batch goes through a queue and shared memory, 0.4 to 1.5 ms here
_CONFIRMED = 0.5  # share of the wait that a rerun without the loader must save at least


def oversubscribed(facts: Facts) -> Cause | None:
    """Detect more worker processes than can ever help."""
    workers, useful = int(facts.number("num_workers")), facts.useful_workers
    if workers <= useful:
        return None
    needed = min(max(facts.needed_workers, 1), useful)
    return Cause(
        "oversubscribed-workers",
        f"{workers} loader workers share {int(facts.number('cores', 1))} cores",
        f"data wait {percent(facts.waited)}; more than {useful} workers only compete with each other, take "
        "long to start and hold their batches in memory",
        f"Try num_workers={needed} (now {workers})",
        max(facts.waited, 0.01),
        share="data_wait",
        explains=("data_wait",),
    )


def restarted(facts: Facts) -> Cause | None:
    """Detect waiting at the start of every epoch."""
    at_starts = facts.number("epoch_wait_share")
    if facts.waited < _DATA_BOUND or at_starts < 0.5 or facts.number("epoch_steps") < 2:
        return None
    if facts.needed_workers > max(facts.number("num_workers"), 1.0):
        return None  # always too slow; workers that deliver at the same time only make it look periodic
    every = f"every {facts.number('epoch_steps'):.0f} steps ({seconds_text(facts.number('epoch_seconds'))})"
    workers = int(facts.number("num_workers"))
    evidence = (
        f"data wait {percent(facts.waited)}, {percent(at_starts)} of it for the first batch of an epoch"
    )
    if workers and not facts.number("persistent_workers"):
        advice = f"Try persistent_workers=True: {workers} workers are restarted at each epoch"
        title = f"the loader's workers are started again {every}"
    else:
        advice = "Keep the loader's state across epochs, or make epochs longer"
        title = f"the training starves {every}, where an epoch begins"
    return Cause(
        "periodic-starvation",
        title,
        evidence,
        advice,
        facts.waited,
        share="data_wait",
        explains=("data_wait",),
    )


def data_bound(facts: Facts) -> Cause | None:
    """Detect a training that is blocked in the loader."""
    if facts.waited < _DATA_BOUND:
        return None
    gain = facts.gain_without_loader
    if gain is not None and gain < _CONFIRMED * facts.waited:
        return Cause(
            "data-bound",
            "waiting for data, which a rerun does not confirm",
            _proof(facts),
            "Measure again on a quieter machine: other processes may have used the loader's cores",
            max(gain, MINOR),
            share="data_wait",
            explains=("data_wait",),
        )
    word = "" if facts.waited >= _HIGHLY else "partly "
    title, advice = _which_loader(facts)
    return Cause(
        "data-bound",
        f"{word}data-bound: {title}",
        _proof(facts),
        advice,
        facts.waited,
        share="data_wait",
        explains=("data_wait",),
    )


def _proof(facts: Facts) -> str:
    waited = f"data wait {percent(facts.waited)}"
    gain = facts.gain_without_loader
    if gain is not None:
        alone, whole = (seconds_text(s) for s in (facts.number("resident_step_seconds"), facts.step_seconds))
        rerun = f"{waited}; on one resident batch a step takes {alone} instead of {whole}"
        if gain < _CONFIRMED * facts.waited:
            return f"{rerun}: without the loader it is {percent(gain)} faster"
        how = "predicted" if facts.reading.modelled else "proven"
        return f"{rerun}: {percent(gain)} is due to the loader ({how} by a rerun)"
    if "resident_refusal" in facts.clues:
        return (
            f"{waited}; not proven: the step refused the same batch twice ({facts.text('resident_refusal')})"
        )
    return waited


def _which_loader(facts: Facts) -> tuple[str, str]:  # noqa: PLR0911  one return per kind of slowness
    """Return why the loader is slow, and what to do about it."""
    workers, needed, useful = int(facts.number("num_workers")), facts.needed_workers, facts.helpful_workers
    batch = f"a batch takes {seconds_text(facts.number('batch_seconds'))} to make"
    sample = seconds_text(facts.number("sample_seconds"))
    slowest = facts.number("slowest_sample_seconds")
    is_one_slow = facts.number("slowest_sample_share") >= 0.5 and facts.number("samples_timed") >= 4
    if is_one_slow:
        return (
            "one slow sample",
            f"Check what `__getitem__` does for it: the slowest of {facts.number('samples_timed'):.0f} "
            f"samples took {seconds_text(slowest)}, the median one {sample}",
        )
    if "batch_seconds" not in facts.clues:
        more = f"num_workers={min(max(2 * workers, 2), useful)} (now {workers})"
        return "the loader", f"Try {more}, or data that is prepared beforehand"
    if facts.number("batch_seconds") < _HANDING_OVER:
        instead = "Make batches in one operation (`__getitems__`), or keep data that fits on the device"
        fewer = f"Try num_workers=0 (now {workers}): " if workers else ""
        return "small batches", f"{fewer}{batch}, no longer than a worker needs to hand one over. {instead}"
    if workers == 0 and needed <= _FIRST_STEP * facts.useful_workers:
        few = f"num_workers={min(max(needed, 1), useful)} (now 0), persistent_workers=True"
        return "no workers", f"Try {few}: {batch}, and none is made while the step runs"
    if "sample_cpu_share" in facts.clues and facts.number("sample_cpu_share") < 0.5:
        read = facts.number("worker_read_bytes_per_s")
        disk = f" (workers read {show(read, Unit.BYTES)}/s from storage)" if read else ""
        return (
            "samples wait for a disk or another service",
            f"Cache or shard the data, or hide the wait: num_workers={min(max(needed, workers + 1), useful)} "
            f"(now {workers}); a sample takes {sample}, {percent(facts.number('sample_cpu_share'))} of it "
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
            f"Make samples cheaper: {batch}, the workers use {percent(full)} of theirs",
        )
    return "uneven batches", f"Try prefetch_factor={max(2 * ahead, 4)} (now {ahead}): {batch} on average"


def shared_cores(facts: Facts) -> Cause | None:
    """Detect loaders of several ranks that compete for the cores of one machine."""
    ranks = len(facts.reading.ranks)
    workers, cores = int(facts.number("num_workers")), int(facts.number("cores", 1))
    if not ranks or facts.waited < _DATA_BOUND or ranks * (workers + 1) <= cores:
        return None
    each = max(cores // ranks - 1, 0)
    waiting = sum(figures.get("data_wait", 0.0) >= _DATA_BOUND for figures in facts.reading.ranks)
    return Cause(
        "shared-cores",
        f"data-bound: {ranks} ranks with {workers} loader workers each share {cores} cores",
        f"data wait {percent(facts.waited)} on the worst rank, {waiting} of {ranks} ranks wait",
        f"Try num_workers={each} a rank (now {workers}), which leaves each rank a core; prepare data once, "
        "or keep it on the device",
        facts.waited,
        share="data_wait",
        explains=("data_wait",),
    )
