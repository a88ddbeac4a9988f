"""The per-detector loop against the shared encoder, modelled: python -m benchmarks.modelled_full_size

A whole training step each, counted in a process of its own, with the CPU time and memory that took. The
defaults are the reference model's full size; goals are two minutes of CPU time and 6 GB for both together.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import torch

from benchmarks.trainings import Size, social_xlstm
from perfsuite import Plan, Reading, open_device

VARIANTS = {"per_vd": "one encoder per detector, in a loop", "shared": "one shared encoder"}
GOAL_SECONDS, GOAL_BYTES = 120, 6e9


def count(encoder: str, size: Size, card: str = "a10") -> Reading:
    """Count and predict one training step on a modelled card."""
    device = open_device(f"model:{card}", Path(__file__).parents[1])
    device.begin_test()
    try:
        step = social_xlstm(encoder, size, device.torch_name)
        return device.measurer(Plan()).step(step, samples_per_step=size.windows, name="step")
    finally:
        device.end_test()


def child(encoder: str, size: Size, card: str) -> str:
    """Return one variant's figures as JSON, with what this process needed for them."""
    torch.set_num_threads(1)  # CPU time of several threads would be counted several times
    reading = count(encoder, size, card)
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        **reading.counts,
        "peak_memory": reading.peak_memory_bytes,
        "step_seconds": reading.step_seconds,
        "busy": reading.utilization,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "host_bytes": used.ru_maxrss * 1024,
    }
    return json.dumps(found)


def row(title: str, found: dict[str, float]) -> str:
    """Return one line of the table."""
    cells = (
        title,
        f"{found['kernels']:,.0f}",
        f"{found['syncs']:,.0f}",
        f"{found['flops'] / 1e9:,.1f} G",
        f"{found['peak_memory'] / 1e9:.1f} GB",
        f"{found['step_seconds']:.3g} s",
        f"{100 * found['busy']:.1f} %",
        f"{found['cpu_seconds']:.0f} s, {found['host_bytes'] / 1e9:.1f} GB",
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Count both variants, print their table, and say whether it was as cheap as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for item in fields(Size):
        parser.add_argument(f"--{item.name}", type=int, default=item.default, help=f"default {item.default}")
    parser.add_argument("--card", default="a10", help="the modelled card (default: a10)")
    parser.add_argument("--child", choices=VARIANTS, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    size = Size(*(getattr(asked, item.name) for item in fields(Size)))
    if asked.child:
        print(child(asked.child, size, asked.card))
        return
    print(f"modelled {asked.card}, {asdict(size)}: one training step")
    print(
        "| | kernels | syncs | FLOPs | peak memory | step (predicted) | busy (predicted) | CPU, host memory |"
    )
    print("|---|---|---|---|---|---|---|---|")
    results = []
    given = [f"--{name}={value}" for name, value in asdict(size).items()]
    for encoder, title in VARIANTS.items():
        command = [sys.executable, "-m", "benchmarks.modelled_full_size", f"--child={encoder}", *given]
        command.append(f"--card={asked.card}")
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(ran.stdout))
        print(row(title, results[-1]), flush=True)
    spent, most = sum(r["cpu_seconds"] for r in results), max(r["host_bytes"] for r in results)
    print(
        f"{spent:.0f} s of CPU time (goal {GOAL_SECONDS}), {most / 1e9:.1f} GB (goal {GOAL_BYTES / 1e9:.0f})"
    )
    if spent > GOAL_SECONDS or most > GOAL_BYTES:
        sys.exit("beyond the goal")


if __name__ == "__main__":
    main()
