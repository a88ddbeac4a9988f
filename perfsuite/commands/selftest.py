"""Prove on this machine what the gate can promise: identical code many times, slower code as well."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfsuite.commands.recording import Workload, differences, figures, record_pairs, record_sessions
from perfsuite.commands.trials import Gate, Rates, against_rates, stored_rates
from perfsuite.errors import SessionFailed
from perfsuite.statistics import mean

SLOWDOWNS = (0.02, 0.05, 0.10)
LEAST_BUDGET_SECONDS = 300.0
_LEAST_SESSIONS = 12  # five for a baseline, one to judge, five to confirm, and one to choose from
_LEAST_PAIRS = 6
_REAL = 0.05  # the slowdown that is really built in, to see that it is measured as large as it is
_TRIALS = 2000
_SHARES = {"sessions": 0.40, "slow sessions": 0.10, "pairs": 0.38, "slow pairs": 0.12}  # of the budget

# One hundred equal units a step, so that a share of slowdown is that many units more.
_TEST = '''
"""A training step of a hundred equal units, and as many more as the slowdown asks for."""
import os
import torch

UNITS = 100
EXTRA = round(UNITS * float(os.environ["PERFSUITE_SLOWDOWN"]))


def test_step(perf):
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    model = torch.nn.Sequential(*layers).to(perf.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.ones(8, 16, device=perf.device)

    def step():
        optimizer.zero_grad()
        for _ in range(UNITS + EXTRA):
            model(batch).square().mean().backward()
        optimizer.step()

    perf(step)
'''


def self_test(budget_seconds: float, device: str, say: Callable[[str], None]) -> str:
    """Record within the budget, play the gate on what was recorded, and return what it can promise."""
    if budget_seconds < LEAST_BUDGET_SECONDS:
        raise SessionFailed(
            f"a self-test needs at least {LEAST_BUDGET_SECONDS / 60:.0f} minutes to say anything, "
            f"got {budget_seconds:.0f} s; give it more with --budget"
        )
    if device.startswith("model:"):
        raise SessionFailed(f"{device} predicts its times, which have no noise to test; choose cpu or cuda")
    with tempfile.TemporaryDirectory(prefix="perfsuite-self-test-") as name:
        folder = Path(name).resolve()
        (folder / "test_self.py").write_text(_TEST)
        (folder / "pytest.ini").write_text("[pytest]\n")
        workload = Workload(
            folder, "test_self.py::test_step", (f"--perf-device={device}", "--perf-max-time=1 s")
        )
        spans = {kind: budget_seconds * share for kind, share in _SHARES.items()}
        say("identical code in fresh processes")
        sessions = figures(record_sessions(workload, spans["sessions"]))
        say("really slower code in fresh processes")
        slow = figures(record_sessions(workload, spans["slow sessions"], _REAL))
        say("identical code against itself, in turns")
        pairs = differences(record_pairs(workload, spans["pairs"]))
        say("really slower code against its old self, in turns")
        slow_pairs = differences(record_pairs(workload, spans["slow pairs"], _REAL))
    if len(sessions) < _LEAST_SESSIONS or len(pairs) < _LEAST_PAIRS:
        raise SessionFailed(
            f"only {len(sessions)} sessions and {len(pairs)} pairs fitted into "
            f"{budget_seconds / 60:.0f} minutes, {_LEAST_SESSIONS} and {_LEAST_PAIRS} are needed; "
            "give it more with --budget"
        )
    return render(sessions, slow, pairs, slow_pairs)


def render(
    sessions: Sequence[Mapping[str, float]],
    slow: Sequence[Mapping[str, float]],
    pairs: Sequence[float],
    slow_pairs: Sequence[float],
) -> str:
    """Return the table of rates and what they are made of."""
    gate = Gate()
    rows = [
        ("stored baseline", [stored_rates(sessions, s, _TRIALS, gate) for s in (0.0, *SLOWDOWNS)]),
        ("--against", [against_rates(pairs, s, _TRIALS, gate) for s in (0.0, *SLOWDOWNS)]),
    ]
    heads = ["false alarms", *(f"{100 * s:.0f} % found" for s in SLOWDOWNS), "undecided"]
    lines = [f"{'':16}  {'  '.join(head.rjust(12) for head in heads)}"]
    for name, rates in rows:
        cells = [*(f"{100 * rate.failed:.1f} %" for rate in rates), _undecided(rates)]
        lines.append(f"{name:16}  {'  '.join(cell.rjust(12) for cell in cells)}")
    told = [
        f"{_TRIALS} trials each, drawn from {len(sessions)} sessions and {len(pairs)} pairs of identical "
        "code; a slowdown is the recorded time made longer.",
        f"Really slower code ({100 * _REAL:.0f} %) measured {_measured(sessions, slow)} in {len(slow)} "
        f"sessions and {_percent(mean(slow_pairs))} in {len(slow_pairs)} pairs.",
        _promise(rows[0][1], rows[1][1]),
    ]
    return "\n".join([*lines, *told])


def _undecided(rates: Sequence[Rates]) -> str:
    return f"{100 * max(rate.undecided for rate in rates):.1f} %"


def _measured(sessions: Sequence[Mapping[str, float]], slow: Sequence[Mapping[str, float]]) -> str:
    """Return the real slowdown as the steadiest clock saw it."""
    names = [name for name in sessions[0] if name == "step_time" or name.startswith("step_in_")]

    def logs(part: Sequence[Mapping[str, float]], name: str) -> list[float]:
        return [math.log(one[name]) for one in part]

    best = min(names, key=lambda n: max(logs(sessions, n)) - min(logs(sessions, n)))
    return _percent(mean(logs(slow, best)) - mean(logs(sessions, best)))


def _percent(effect: float) -> str:
    return f"{100 * math.expm1(effect):+.1f} %"


def _promise(stored: Sequence[Rates], against: Sequence[Rates]) -> str:
    """Say the smallest tried slowdown that each way finds nine times out of ten."""

    def least(rates: Sequence[Rates]) -> str:
        found = [s for s, rate in zip(SLOWDOWNS, rates[1:], strict=True) if rate.failed >= 0.9]
        return f"{100 * found[0]:.0f} %" if found else f"nothing up to {100 * SLOWDOWNS[-1]:.0f} %"

    return (
        f"This machine can promise to find: with a stored baseline {least(stored)}, "
        f"with --against {least(against)} (nine times out of ten)."
    )
