"""The stored CPU baselines of the suite gate: each sees a slowdown of less than a third."""

import json
from pathlib import Path

import pytest

from perfsuite.collect.limits import SecondStage, timing_limits
from perfsuite.collect.markers import parse_setting
from perfsuite.noise import NOISIEST
from perfsuite.records import Settings
from tests.perf.contract import ON

STORED = sorted(Path(__file__).parents[2].glob("baselines/cpu_*/**/*.json"))
CONFIRMED = SecondStage(5, 0.01)  # --perf-confirm and --perf-family-error as they are by default


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_speed_up_is_gated_at_what_its_noise_allows(path):
    """By the tolerance of the suite's marker; at 100 % nothing below a collapse would be seen."""
    tolerance = parse_setting("tolerance", ON["cpu"].kwargs["tolerance"])
    (reading,) = json.loads(path.read_text())["readings"].values()
    limits = timing_limits(reading["sessions"], Settings(tolerance=tolerance), CONFIRMED)
    (speed_up,) = [limit for limit in limits if limit.metric.name == "speedup"]
    assert speed_up.visible < NOISIEST


def test_there_are_stored_baselines():
    """A folder that was renamed would check nothing."""
    assert len(STORED) >= 3
