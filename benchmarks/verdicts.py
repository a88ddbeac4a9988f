"""How often a gate cries wolf and how often it finds a slowdown: ours, pytest-benchmark's and asv's rules.

    python -m benchmarks.verdicts record FILE [--minutes 12]   # measure on this machine
    python -m benchmarks.verdicts report FILE                  # play all rules on what was measured

The workload is one training step of a small xLSTM on one thread. It is recorded in fresh processes (sessions)
and in pairs of processes in turns, each quiet and with a second process burning one core, and each also with
really slower code. The rates come from thousands of trials drawn from the recorded readings of identical
code; the readings of the slower code check that an injected slowdown is measured as large as it is.
"""

import argparse
import contextlib
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import scipy.stats

from perfsuite.commands import (
    Gate,
    Workload,
    against_rates,
    busy_core,
    record_pairs,
    record_sessions,
    stored_rates,
)

WORKLOAD = Workload(
    Path(__file__).parent / "verdicts_workload",
    "test_training_step.py::test_training_step",
    ("--perf-device=cpu", "--perf-max-time=2 s"),
)
CONDITIONS = ("quiet", "loaded")
SHARES = {
    "sessions": 0.21,
    "pairs": 0.25,
    "slow sessions": 0.02,
    "slow pairs": 0.02,
}  # of the time, each condition
REAL = {"slow sessions": 0.10, "slow pairs": 0.05}  # the slowdown that is really built in
TRIALS = 4000
BENCHMARK_SECONDS = 1.0  # what pytest-benchmark measures by default
ASV_PROCESSES, ASV_SAMPLES, ASV_P, ASV_FACTOR = 2, 5, 0.002, 1.1  # asv's defaults


def record(kind: str, condition: str, seconds: float) -> dict[str, Any]:
    """Record one kind of reading under one condition."""
    beside = busy_core() if condition == "loaded" else contextlib.nullcontext()
    with beside:
        if kind.endswith("sessions"):
            taken = record_sessions(WORKLOAD, seconds, REAL.get(kind, 0.0))
            found = [{"values": one.values, "rounds": first_second(one.rounds)} for one in taken]
        else:
            pairs = record_pairs(WORKLOAD, seconds, REAL.get(kind, 0.0))
            found = [{"difference": one.differences[0], "turns": len(one.turns[0])} for one in pairs]
    return {"kind": kind, "condition": condition, "found": found}


def first_second(rounds: Sequence[float]) -> list[float]:
    """Return the rounds that a benchmark of one second would have taken."""
    spent, kept = 0.0, []
    for one in rounds:
        kept.append(float(f"{one:.5g}"))
        spent += one
        if spent >= BENCHMARK_SECONDS:
            break
    return kept


def load(path: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return all recorded readings by kind and condition."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        found.setdefault((entry["kind"], entry["condition"]), []).extend(entry["found"])
    return found


Rule = Callable[[random.Random, Sequence[dict[str, Any]], float], bool]


def compare_fail(statistic: Callable[[Sequence[float]], float]) -> Rule:
    """Return pytest-benchmark's --benchmark-compare-fail=…:5%: one run against one run."""

    def rule(chance: random.Random, sessions: Sequence[dict[str, Any]], slowdown: float) -> bool:
        old, new = chance.sample(sessions, 2)
        return statistic(new["rounds"]) * (1 + slowdown) > 1.05 * statistic(old["rounds"])

    return rule


def asv(chance: random.Random, sessions: Sequence[dict[str, Any]], slowdown: float) -> bool:
    """Apply asv's rule: medians more than the factor apart, and the samples of two processes differ."""
    drawn = chance.sample(sessions, 2 * ASV_PROCESSES)
    samples = [[one for s in half for one in s["rounds"][:ASV_SAMPLES]] for half in (drawn[:2], drawn[2:])]
    old, new = samples[0], [one * (1 + slowdown) for one in samples[1]]
    if statistics.median(new) <= ASV_FACTOR * statistics.median(old):
        return False
    return float(scipy.stats.mannwhitneyu(old, new, alternative="two-sided").pvalue) < ASV_P


OTHERS: dict[str, Rule] = {
    "pytest-benchmark median:5%": compare_fail(statistics.median),
    "pytest-benchmark min:5%": compare_fail(min),
    "asv (factor 1.1)": asv,
}


def report(path: Path) -> str:
    """Return the tables of all rates."""
    records = load(path)
    lines = [
        _noise(records),
        "",
        "| rule | machine | false alarms | 2 % found | 5 % found | 10 % found | undecided |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for condition in CONDITIONS:
        sessions = records.get(("sessions", condition), [])
        for name, rule in OTHERS.items():
            chance = random.Random(0)
            rates = [
                sum(rule(chance, sessions, s) for _ in range(TRIALS)) / TRIALS for s in (0, 0.02, 0.05, 0.1)
            ]
            lines.append(_row(name, condition, [*map(_percent, rates), "–"]))
        values = [one["values"] for one in sessions]
        stored = [stored_rates(values, s, TRIALS) for s in (0, 0.02, 0.05, 0.1)]
        undecided = _percent(stored[0].undecided)
        lines.append(
            _row("**stored baseline**", condition, [_percent(r.failed) for r in stored] + [undecided])
        )
        differences = [one["difference"] for one in records.get(("pairs", condition), [])]
        # Sixteen pairs measure 18.75 s each; taken as no steadier than the recorded ones of 7.5 s.
        for name, gate in (("**--against, 60 s**", Gate()), ("**--against, 5 min**", Gate(pairs=16))):
            found = [against_rates(differences, s, TRIALS, gate) for s in (0, 0.02, 0.05, 0.1)]
            undecided = " / ".join(_percent(r.undecided) for r in found)
            lines.append(_row(name, condition, [_percent(r.failed) for r in found] + [undecided]))
    lines += ["", *_crossed(records), *_real(records)]
    return "\n".join(lines)


def _crossed(records: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """Return the rates of a baseline saved on a quiet machine and held against a loaded one."""
    quiet, loaded = (
        [one["values"] for one in records.get(("sessions", condition), [])] for condition in CONDITIONS
    )
    rates = [stored_rates(quiet, s, TRIALS, new=loaded) for s in (0, 0.1)]
    return [
        f"Baseline quiet, reading loaded: false alarms {_percent(rates[0].failed)}, "
        f"10 % found {_percent(rates[1].failed)}."
    ]


def _real(records: dict[tuple[str, str], list[dict[str, Any]]]) -> list[str]:
    """Return what the really slower code measured."""
    lines = []
    for condition in CONDITIONS:
        base, slow = (records.get((kind, condition), []) for kind in ("sessions", "slow sessions"))
        if base and slow:
            logs = [
                statistics.mean(math.log(one["values"]["step_in_tiny_ops"]) for one in part)
                for part in (base, slow)
            ]
            lines.append(
                f"Real slowdown of 10 %, {condition}, {len(slow)} sessions: measured "
                f"{100 * math.expm1(logs[1] - logs[0]):+.1f} %."
            )
        if pairs := records.get(("slow pairs", condition), []):
            effect = statistics.mean(one["difference"] for one in pairs)
            told = f"{100 * math.expm1(effect):+.1f} %"
            lines.append(f"Real slowdown of 5 %, {condition}, {len(pairs)} pairs: measured {told}.")
    return lines


def _noise(records: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    lines = ["| recorded | machine | number | deviation from one to the next |", "|---|---|---|---|"]
    for condition in CONDITIONS:
        sessions = records.get(("sessions", condition), [])
        for name in ("step_time", "step_in_products", "step_in_copies", "step_in_tiny_ops"):
            logs = [math.log(one["values"][name]) for one in sessions]
            lines.append(
                _row(f"sessions, {name}", condition, [str(len(logs)), _percent(statistics.stdev(logs))])
            )
        logs = [one["difference"] for one in records.get(("pairs", condition), [])]
        lines.append(_row("pairs of 7.5 s", condition, [str(len(logs)), _percent(statistics.stdev(logs))]))
    return "\n".join(lines)


def _row(*cells: str | list[str]) -> str:
    flat = [cell for part in cells for cell in ([part] if isinstance(part, str) else part)]
    return f"| {' | '.join(flat)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "report", "both"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=12.0, help="time to record (default: 12)")
    parser.add_argument("--kind", choices=list(SHARES), help="record only this kind")
    parser.add_argument("--condition", choices=CONDITIONS, help="record only under this condition")
    asked = parser.parse_args()
    if asked.what in ("record", "both"):
        kinds = [asked.kind] if asked.kind else list(SHARES)
        conditions = [asked.condition] if asked.condition else list(CONDITIONS)
        whole = sum(SHARES[kind] for kind in kinds) * len(conditions)
        for condition in conditions:
            for kind in kinds:
                seconds = 60 * asked.minutes * SHARES[kind] / whole
                entry = record(kind, condition, seconds)
                with asked.file.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
                print(f"{kind}, {condition}: {len(entry['found'])} recorded", flush=True)
    if asked.what in ("report", "both"):
        print(report(asked.file))


if __name__ == "__main__":
    main()
