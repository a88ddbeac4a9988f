"""Made-up results for the page: one test or sixty, with every kind of chart and verdict."""

import math
import random

from perfsuite.environment import Environment
from perfsuite.judge.verdicts import judge
from perfsuite.metrics import METRICS
from perfsuite.records import Baseline, DeviceFacts, Expectation, Limit, Match, Result, StoredReading
from tests.readings import make_reading

HERE = Environment.from_device(
    DeviceFacts("cuda", "made-up GPU", "CUDA events", driver="550.163", cuda="12.8")
)
THERE = {**HERE.to_stored(), "driver": "535.261", "commit": "0" * 40}
SHARES = {"data_wait": 0.41, "launch_gaps": 0.07, "kernels": 0.46, "optimizer": 0.06}
BEFORE = {"data_wait": 0.06, "launch_gaps": 0.09, "kernels": 0.77, "optimizer": 0.08}


def reading(number, slower=1.0, kind="loop", modelled=False):
    """Return a reading whose steps take 20 ms, more or less."""
    chance = random.Random(number)
    rounds = tuple(0.02 * slower * math.exp(chance.gauss(0, 0.04)) for _ in range(300))
    middle = sorted(rounds)[150]
    without = None
    if kind == "comparison":
        without = make_reading(
            "without", kind, "cuda:0", 300, 10, 19200, 18.0, rounds, step_seconds=3 * middle
        )
    return make_reading(
        kind,
        kind,
        "cuda:0",
        300,
        10,
        300 * 64,
        sum(rounds),
        rounds,
        samples_per_s=300 * 64 / sum(rounds),
        step_seconds=middle,
        utilization=0.55,
        peak_memory_bytes=(9 + number % 5) * 2**30,
        data_wait=SHARES["data_wait"] if kind == "loop" else None,
        speedup=3.0 if kind == "comparison" else None,
        speedup_low=2.9 if kind == "comparison" else None,
        speedup_high=3.1 if kind == "comparison" else None,
        series=tuple(0.5 + 0.4 * math.sin(i / 6) for i in range(120)),
        memory_series=tuple((8 + i / 60) * 2**30 for i in range(120)),
        shares=SHARES,
        clues={"num_workers": 0.0, "cores": 20.0, "batch_seconds": 0.031, "resident_step_seconds": 0.012},
        without=without,
        modelled=modelled,
    )


def result(number, name=None):
    """Return a result: failed, improved, comparison, modelled or fine, in turns."""
    slower = {0: 1.4, 3: 0.7}.get(number % 6, 1.0)
    kind = "comparison" if number % 6 == 2 else "loop"
    measured = reading(number, slower, kind, modelled=number % 6 == 4)
    stored = {"samples_per_s": 3200.0, "step_time": 0.02}
    metric = METRICS["samples_per_s" if kind == "loop" else "step_time"]
    reference = stored[metric.name]
    bound = 0.9 * reference if metric.higher_is_better else 1.1 * reference
    limit = Limit(metric, bound, "the baseline", reference, 0.1)
    expectation = Expectation(
        by_reading={kind: (limit,)},
        baseline=Baseline(
            Match.EXACT,
            readings={
                kind: StoredReading(stored, shares=BEFORE, rounds=[0.02 + 0.00001 * i for i in range(200)])
            },
            environment=THERE,
        ),
    )
    test = name or f"tests/perf/test_training.py::test_optimization[{number}]"
    return Result(test, expectation, (measured,), judge(measured, [limit]))


ENVIRONMENTS = {"cuda:0": HERE}
