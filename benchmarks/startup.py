"""What the plugin costs a pytest run that does not use it, beside what pytest-benchmark costs.

    python -m benchmarks.startup [--rounds 30]

Every round runs pytest on one empty test in each variant, the order shuffled, so that a busy machine
slows all of them alike; the medians of the differences within a round are printed. Wall time is what
a person waits; CPU time is the same figure on a quiet machine and the steadier one on a busy one.
"""

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

VARIANTS = {
    "everything": [],
    "without perfsuite": ["-p", "no:perfsuite"],
    "without pytest-benchmark": ["-p", "no:benchmark", "-p", "no:perfsuite"],
}


class Cost(NamedTuple):
    wall: float
    cpu: float


def run_once(folder: Path, arguments: list[str]) -> Cost:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "test_empty.py"]
    before, used = time.perf_counter(), cpu_seconds()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return Cost(time.perf_counter() - before, cpu_seconds() - used)


def cpu_seconds() -> float:
    """Return the CPU seconds of all children so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(rounds: int) -> list[dict[str, Cost]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_empty.py").write_text("def test_empty(): pass\n")
        for arguments in VARIANTS.values():  # bytecode and disk caches
            run_once(folder, arguments)
        found = []
        for _ in range(rounds):
            order = random.sample(list(VARIANTS), len(VARIANTS))
            found.append({variant: run_once(folder, VARIANTS[variant]) for variant in order})
        return found


def cost(rounds: list[dict[str, Cost]], clock: str, with_: str, without: str) -> str:
    differences = sorted(1e3 * (getattr(one[with_], clock) - getattr(one[without], clock)) for one in rounds)
    low, high = differences[len(rounds) // 4], differences[-1 - len(rounds) // 4]
    return f"{statistics.median(differences):6.1f} ms   (middle half {low:.1f} to {high:.1f} ms)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="how many rounds (default: 40)")
    rounds = measure(parser.parse_args().rounds)
    for clock in Cost._fields:
        bare = 1e3 * statistics.median(getattr(one["without pytest-benchmark"], clock) for one in rounds)
        plugin = cost(rounds, clock, "everything", "without perfsuite")
        other = cost(rounds, clock, "without perfsuite", "without pytest-benchmark")
        print(f"{clock} time of pytest on one empty test, {len(rounds)} rounds, bare: {bare:.0f} ms")
        print(f"  perfsuite adds         {plugin}   goal: at most 10 ms")
        print(f"  pytest-benchmark adds  {other}")


if __name__ == "__main__":
    main()
