"""How long a window must be for a card's utilization: as many of its own sample periods as are judged."""

from types import SimpleNamespace

import pytest

from perfsuite.devices.cuda.nvml import Answer
from perfsuite.devices.cuda.sampler import utilization_seconds

ABSENT = Answer(why="this device does not report it")


def buffer(period, count=20):
    return Answer([(round(1e6 * period * i), 0.5) for i in range(count)])


@pytest.mark.parametrize(
    ("samples", "rate", "expected"),
    [
        (buffer(1 / 6), Answer(0.5), 11 / 6),
        (buffer(1.0), Answer(0.5), 11.0),
        (buffer(0.02), Answer(0.5), 0.22),
        (Answer([]), Answer(0.0), 11.0),  # an idle card's buffer is empty: it may be the slowest kind
        (ABSENT, Answer(0.5), 5.5),  # polled twice a second
        (ABSENT, ABSENT, 0.0),  # waiting would not help
    ],
)
def test_the_window_follows_from_the_cards_own_period(samples, rate, expected):
    """Ten periods, and one more because the window cuts the first and the last."""
    card = SimpleNamespace(samples=lambda cursor: samples, utilization=lambda: rate)
    assert expected == pytest.approx(utilization_seconds(card), rel=1e-3)
