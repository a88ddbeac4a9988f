"""What watching a card costs the training beside it: CPU training with the sampler on and off, interleaved.

    python -m benchmarks.sampler [--pairs 200]

The card is the tests' stand-in library, so the figure is the cost of our thread, of the binding and of
Python's lock, without the driver's. Short blocks run in turns, the order swapped from pair to pair. What is
looked for is far below the noise of any machine, so the card is looked at twenty times as often as in
earnest and the loss, which grows with the number of looks, is divided by twenty.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from perfsuite.devices.cuda import PERIOD_SECONDS, Sampler, open_nvml
from tests.nvml import standin

AMPLIFIED = 20
BLOCK_SECONDS = 5.2 * PERIOD_SECONDS / AMPLIFIED  # five looks by the clock
GOAL = 0.005


def training():
    """Return a small training step on one thread: two threads would measure the machine's other users."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(128, 64)

    def step():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def block(step, nvml) -> tuple[float, float]:
    """Run one block, watched or not, and return wall and CPU seconds per step."""
    sampler = Sampler(nvml, period_seconds=PERIOD_SECONDS / AMPLIFIED) if nvml else None
    if sampler:
        sampler.start()
    steps, began, used = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < BLOCK_SECONDS:
        step()
        steps += 1
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    if sampler:
        sampler.stop()
    return wall / steps, cpu / steps


def measure(pairs: int) -> None:
    step, nvml = training(), open_nvml((standin.UUID,))
    assert not nvml.absent, nvml.absent
    for watched in (None, nvml):
        block(step, watched)
    found = []
    for number in range(pairs):
        order = (None, nvml) if number % 2 == 0 else (nvml, None)
        one = {watched is not None: block(step, watched) for watched in order}
        found.append((one[False], one[True]))
    print(f"throughput of a CPU training while a card is watched, {pairs} interleaved pairs")
    for place, clock in enumerate(("wall", "CPU")):
        ratio, low, high = interval([off[place] / on[place] for off, on in found])
        change, least, most = (100 * (share - 1) / AMPLIFIED for share in (ratio, low, high))
        told = f"{change:+.3f} % (95 % interval {least:+.3f} to {most:+.3f} %)"
        print(f"  by {clock:4} time {told}   goal: less than {100 * GOAL:.1f} % lost")
    print(f"  one step takes {1e3 * statistics.median(off[0] for off, _ in found):.2f} ms, {own_cost(nvml)}")


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median of the pairs' ratios and its 95 % interval, by ranks: outliers widen, not move it."""
    ordered = sorted(ratios)
    rank = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return statistics.median(ordered), ordered[rank], ordered[-1 - rank]


def own_cost(nvml) -> str:
    """Return what the snapshots themselves take of a core, measured with nothing else running."""
    sampler, snapshots = Sampler(nvml), 200
    before = time.thread_time()
    for _ in range(snapshots):
        sampler.take_snapshot()
    spent = (time.thread_time() - before) / snapshots
    share = 100 * spent / PERIOD_SECONDS
    return f"one snapshot {1e3 * spent:.2f} ms of a core, at most every {PERIOD_SECONDS} s: {share:.3f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200, help="how many pairs (default: 200)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        measure(asked.pairs)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = standin.build(folder)
        path = folder / "script.txt"
        path.write_text(
            standin.script("at 0 utilization 80", "at 0 processes 1:1 2:1", "at 0 gpm 1", speed=1)
        )
        command = [sys.executable, "-m", "benchmarks.sampler", "--child", "--pairs", str(asked.pairs)]
        subprocess.run(command, env=standin.environment(library, path), check=True)


if __name__ == "__main__":
    main()
