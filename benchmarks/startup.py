"""What the plugin costs a pytest run that does not use it, beside what pytest-benchmark costs.

    python -m benchmarks.startup [--rounds 30]

Every round runs pytest on one empty test in each variant, the order shuffled, so that a busy
machine slows all of them alike; the medians of the differences within a round are printed.
"""

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VARIANTS = {
    "everything": [],
    "without perfsuite": ["-p", "no:perfsuite"],
    "without pytest-benchmark": ["-p", "no:benchmark", "-p", "no:perfsuite"],
}


def run_once(folder: Path, arguments: list[str]) -> float:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "test_empty.py"]
    before = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - before


def measure(rounds: int) -> list[dict[str, float]]:
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


def cost(rounds: list[dict[str, float]], with_: str, without: str) -> str:
    differences = sorted(1e3 * (one[with_] - one[without]) for one in rounds)
    low, high = differences[len(rounds) // 4], differences[-1 - len(rounds) // 4]
    return f"{statistics.median(differences):6.1f} ms   (middle half {low:.1f} to {high:.1f} ms)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="how many rounds (default: 30)")
    rounds = measure(parser.parse_args().rounds)
    whole = 1e3 * statistics.median(one["without pytest-benchmark"] for one in rounds)
    print(f"pytest on one empty test, {len(rounds)} rounds, bare: {whole:.0f} ms")
    print(f"  perfsuite adds         {cost(rounds, 'everything', 'without perfsuite')}   goal: at most 10 ms")
    print(f"  pytest-benchmark adds  {cost(rounds, 'without perfsuite', 'without pytest-benchmark')}")


if __name__ == "__main__":
    main()
