"""This processor calibrated as a card, predicted against measured: python -m benchmarks.cpu_as_card

One torch thread; a step's time is the median of its thread's CPU time over rounds in which all trainings take
turns, so that a busy neighbour costs all of them alike. The first step of a turn is not timed: it finds the
caches full of another training, as no step of a real one does.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.trainings import Size, Step, lstm, social_xlstm, transformer
from perfsuite.devices.model import Card, Timeline, calibrate_cpu, events_of

GOAL = 0.25
SMALL, MEDIUM = Size(detectors=6, windows=4), Size(detectors=20, windows=4)
TRAININGS: Mapping[str, Callable[[], Step]] = {
    "shared encoder, 4 windows x 20 detectors": lambda: social_xlstm("shared", MEDIUM, "cpu"),
    "the same, sync-free cell": lambda: social_xlstm("shared", MEDIUM, "cpu", cell="sync_free"),
    "per-detector loop, 4 x 6": lambda: social_xlstm("per_vd", SMALL, "cpu"),
    "shared encoder, 4 x 6": lambda: social_xlstm("shared", SMALL, "cpu"),
    "nn.LSTM, 2 x 64, batch 64": lambda: lstm(64, 64, "cpu"),
    "nn.LSTM, 2 x 128, batch 256": lambda: lstm(128, 256, "cpu"),
    "transformer, 2 x 64, batch 32": lambda: transformer(64, 32, "cpu"),
    "transformer, 2 x 128, batch 64": lambda: transformer(128, 64, "cpu"),
}
# Variants of one training, the slower one first.
ORDERS = (
    ("shared encoder, 4 windows x 20 detectors", "the same, sync-free cell"),
    ("per-detector loop, 4 x 6", "shared encoder, 4 x 6"),
)
_TURN_SECONDS = 0.1  # shorter steps are run several times in their turn


@dataclass(frozen=True)
class Found:
    """One training, measured and predicted."""

    title: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return by which share the prediction is too long."""
        return self.predicted / self.measured - 1


def predict(step: Step, card: Card) -> float:
    """Return how long a step would take on a card."""
    timeline = Timeline(card)
    timeline.play(events_of(step))
    return timeline.result().seconds


def measure(
    steps: Mapping[str, Step], rounds: int, clock: Callable[[], float] = time.thread_time
) -> dict[str, list[float]]:
    """Return each step's seconds, round by round."""
    times: dict[str, list[float]] = {title: [] for title in steps}
    counts = {}
    for title, step in steps.items():
        step()  # optimizers make their state
        started = clock()
        step()
        counts[title] = max(1, round(_TURN_SECONDS / max(clock() - started, 1e-9)))
    for _ in range(rounds):
        for title, step in steps.items():
            step()
            started = clock()  # the clock runs from here
            for _ in range(counts[title]):
                step()
            times[title].append((clock() - started) / counts[title])
    return times


def compare(steps: Mapping[str, Step], times: Mapping[str, Sequence[float]], card: Card) -> list[Found]:
    """Return every training's median beside its prediction."""
    return [
        Found(title, statistics.median(times[title]), predict(step, card)) for title, step in steps.items()
    ]


def wrong_orders(found: Sequence[Found]) -> list[str]:
    """Return the pairs of variants whose prediction puts the faster one last."""
    by_title = {entry.title: entry.predicted for entry in found}
    return [f"{slow} / {fast}" for slow, fast in ORDERS if by_title[slow] <= by_title[fast]]


def main() -> None:
    """Calibrate, measure, predict, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="how often each training is timed (default: 9)")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    began = time.process_time()
    card = calibrate_cpu("here")
    print(f"{card.title}: calibrated in {time.process_time() - began:.0f} s of CPU time")
    steps = {title: make() for title, make in TRAININGS.items()}
    times = measure(steps, rounds)
    found = compare(steps, times, card)
    print("| training | measured | predicted | error |\n|---|---|---|---|")
    for entry in found:
        print(
            f"| {entry.title} | {1e3 * entry.measured:.3g} ms | {1e3 * entry.predicted:.3g} ms "
            f"| {100 * entry.error:+.0f} % |"
        )
    beyond = [entry.title for entry in found if abs(entry.error) > GOAL]
    print(f"beyond {100 * GOAL:.0f} %: {', '.join(beyond) or 'none'}")
    print(f"order of variants wrong: {', '.join(wrong_orders(found)) or 'none'}")
    if beyond or wrong_orders(found):
        sys.exit(1)


if __name__ == "__main__":
    main()
