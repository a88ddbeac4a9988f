"""The closing table's word for a figure: nothing that was not measured may pass for measured."""

from types import SimpleNamespace

import pytest

from tests.perf import closing
from tests.perf.catalogue import CATALOGUE

NUMBER = next(iter(CATALOGUE))


@pytest.mark.parametrize("word", ["measured", "modelled", "emulated"])
def test_a_row_says_how_its_figures_came_about(word):
    """As the reading says it."""
    reading = SimpleNamespace(modelled=word != "measured", how=word)
    perf = SimpleNamespace(readings=[reading], device_name="device:1")
    case = SimpleNamespace(number=NUMBER, perf=perf, figures=["2.00×"])
    rows = SimpleNamespace(outcomes={"test": "passed"}, cases={"test": case}, skipped={})
    ((_, _, how, _, figures),) = closing._lines(NUMBER, rows)
    assert f"device:1, {word}" == how
    assert figures.startswith("2.00×")
