"""The error of a prediction: every kind of kernel has one, and a step's follows from its kernels'."""

import dataclasses
import math

import pytest

from perfsuite.devices.code_lines import UNKNOWN
from perfsuite.devices.kernels import Kernel, KernelKind, Launch
from perfsuite.devices.model.cards import Card, find_card
from perfsuite.devices.model.rules import shipped_rules
from perfsuite.devices.model.timeline import Timeline
from perfsuite.devices.model.uncertainty import combined_error, kernel_error

ERRORS = shipped_rules().errors
V100 = find_card("v100")
LINEAR = Kernel(
    "mm", KernelKind.LINEAR, 2.0 * 2048**3, 2 * 4 * 2048**2, 4 * 2048**2, "float32", 1, (1, *[2048] * 3)
)
ADD = Kernel("add", KernelKind.ELEMENTWISE, 0.0, 2**28, 2**27, "float32")


@pytest.mark.parametrize("kind", list(KernelKind))
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_every_kind_of_kernel_has_an_error(kind, precision):
    """Measured or assumed, forward and backward."""
    for op in ("some", "some_backward"):
        assert 0 < kernel_error(Kernel(op, kind, 1.0, 1, 1, precision), V100) < 1


def test_errors_of_one_cause_add_up_and_independent_ones_do_not():
    """Two products share a clock; a product and an addition share nothing."""
    assert ERRORS["linear"] == pytest.approx(combined_error([(LINEAR, 1.0), (LINEAR, 3.0)], V100))
    both = combined_error([(LINEAR, 1.0), (ADD, 1.0)], V100)
    assert math.hypot(ERRORS["linear"], ERRORS["element-wise"]) / 2 == pytest.approx(both)


def test_waiting_for_the_host_is_an_estimate_too():
    """A step that mostly waits is as uncertain as the host's microseconds."""
    assert combined_error([(ADD, 1e-6)], V100, idle_seconds=1.0) == pytest.approx(0.3, rel=0.01)


def test_a_calibrated_card_is_known_better():
    """Where a kind of kernels was measured on it."""
    calibrated = dataclasses.replace(V100, corrections={"linear": (0.0,)})
    assert kernel_error(LINEAR, calibrated) == ERRORS["linear, calibrated"] < kernel_error(LINEAR, V100)
    assert kernel_error(ADD, calibrated) == kernel_error(ADD, V100)


def test_nothing_is_said_where_no_rule_predicts():
    """A processor runs along its own curves; an empty step takes no time."""
    host = Card("cpu", "CPU", 1e9, 1e9, 1, 1e9, "", is_host=True)
    assert combined_error([(ADD, 1.0)], host) is None
    assert combined_error([], V100) is None


def test_a_played_step_knows_its_error():
    """Weighted by what each kernel takes, however often it is launched."""
    timeline = Timeline(dataclasses.replace(V100, dispatch_seconds=0.0, launch_seconds=0.0))
    timeline.play([Launch(LINEAR, UNKNOWN)] * 5)
    assert ERRORS["linear"] == pytest.approx(timeline.result().relative_error)
