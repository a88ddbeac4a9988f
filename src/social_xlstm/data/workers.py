"""How many loader processes help: by rule, or from measured times of loading and of the step."""

import math
import os
import time
from pathlib import Path

import numpy as np

from social_xlstm.data.windows import Windows
from social_xlstm.errors import InputError

# Waiting below this share of the step is not worth a process (the usual line between fine and data-bound).
FREE_SHARE = 0.05
# Handing a batch from a worker to the trainer costs the trainer about this much itself.
HANDOVER_SECONDS = 0.001
# Workers do not keep pace evenly; a quarter more than the exact need bridges that.
HEADROOM = 1.25
# On small machines a few processes beyond the cores still help when they wait for a disk; above 32 one
# receiving process cannot keep up, and each holds its prefetched batches in memory.
_FEW, _MANY = 8, 32
_COPY_BYTES_PER_SECOND = 2e9
_DETECTOR_SECONDS = 2e-6


def usable_cores(world_size: int = 1) -> int:
    """Count the cores this process may use: affinity and quota, shared among the training's processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # no quota to respect
    return max(1, cores // world_size)


def most_useful_workers(cores: int) -> int:
    """Return the number of workers beyond which more have never helped."""
    return max(_FEW, min(cores, _MANY))


def check_num_workers(num_workers: int, cores: int) -> int:
    """Refuse numbers of workers outside the useful range."""
    most = most_useful_workers(cores)
    if num_workers < 0:
        raise InputError(f"data.loader.num_workers is {num_workers}; give 0 or more, or auto")
    if num_workers > most:
        raise InputError(
            f"data.loader.num_workers is {num_workers}, but more than {most} workers on {cores} cores only "
            "compete with each other and fill the memory; use auto, which takes as few as keep up"
        )
    return num_workers


def choose_num_workers(loader_seconds: float, step_seconds: float, *, cores: int) -> int:
    """Choose the fewest workers that keep up, from the seconds to load and to train on one batch."""
    if loader_seconds < 0 or step_seconds <= 0:
        raise InputError(
            f"loading takes {loader_seconds} s and a step {step_seconds} s; give measured, positive times"
        )
    # Loaded in between, a batch costs its own time; loaded by a worker, it costs the handover.
    if loader_seconds <= max(FREE_SHARE * step_seconds, HANDOVER_SECONDS):
        return 0
    needed = math.ceil(HEADROOM * loader_seconds / step_seconds)
    return max(1, min(needed, cores, _MANY))


def estimate_loader_seconds(windows: Windows, batch_size: int, batch_format: str) -> float:
    """Estimate the seconds to load one batch from its bytes, where nothing was measured."""
    seconds = batch_size * windows.sample_bytes / _COPY_BYTES_PER_SECOND
    seconds += batch_size * windows.series.seconds_per_window
    if batch_format == "distributed":
        seconds += 3 * len(windows.vdids) * _DETECTOR_SECONDS
    return seconds


def measure_loader_seconds(windows: Windows, batch_size: int, *, batches: int = 5) -> float:
    """Measure the seconds to load one batch in this process: the median of a few, after one to warm up."""
    rng = np.random.default_rng(0)
    taken = []
    for _ in range(batches + 1):
        indices = rng.integers(0, len(windows), batch_size)
        begin = time.perf_counter()  # the clock runs
        windows.gather(indices)
        taken.append(time.perf_counter() - begin)
    return float(np.median(taken[1:]))


def host_memory_bytes(
    num_workers: int, prefetch_factor: int | None, batch_size: int, sample_bytes: int
) -> int:
    """Count the host memory of batches in flight: workers × prefetch × batch × bytes of a sample."""
    return max(1, num_workers * (prefetch_factor or 1)) * batch_size * sample_bytes
