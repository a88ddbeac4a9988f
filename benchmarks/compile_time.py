"""How long torch.compile takes for one kind of cells, both passes: python -m benchmarks.compile_time CELL

Whatever is compiled first in a process also pays for the compiler's start, and what was compiled before may
come from a cache: so every figure is that of a process of its own with an empty cache folder.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import torch

from social_xlstm.config import XLSTMConfig
from social_xlstm.model.cells import build_stack

SEQUENCES, STEPS, WIDTH = 800, 12, 128


@dataclass(frozen=True)
class CompileTimes:
    """Seconds of every process."""

    package: list[float]
    fast: list[float]

    @property
    def ratio(self) -> float:
        """How many times as long the fast cells take, median by median."""
        return statistics.median(self.fast) / statistics.median(self.package)


def in_turns(rounds: int) -> CompileTimes:
    """Compile both in processes of their own, one after the other, the order alternating."""
    times = CompileTimes([], [])
    for index in range(rounds):
        for cell in ("package", "fast") if index % 2 == 0 else ("fast", "package"):
            getattr(times, cell).append(in_a_process(cell))
    return times


def in_a_process(cell: str) -> float:
    """Return the seconds that a fresh process with an empty cache folder needs."""
    with tempfile.TemporaryDirectory() as cache:
        settings = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
        ran = subprocess.run(
            [sys.executable, "-m", "benchmarks.compile_time", cell],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return float(json.loads(ran.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    """Compile the cell that is named and print the seconds as JSON."""
    (cell,) = sys.argv[1:]
    torch.manual_seed(0)
    stack = build_stack(XLSTMConfig(embedding_dim=WIDTH, dropout=0.0), cell)
    x, upstream = torch.randn(2, SEQUENCES, STEPS, WIDTH)
    start = time.perf_counter()
    torch.compile(stack)(x.requires_grad_()).backward(upstream)
    print(json.dumps({"cell": cell, "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main()
