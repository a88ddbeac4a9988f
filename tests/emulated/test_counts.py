"""The counts that the modelled card is held against are what the emulated card counts."""

import sys

import pytest

from benchmarks.emulated_table import table
from benchmarks.emulated_table.__main__ import count_emulated

pytestmark = pytest.mark.cuda_torch


@pytest.mark.slow
def test_the_stored_half_is_what_the_emulated_card_counts():
    """Counted anew by the torch at hand, in a process of its own."""
    fresh = count_emulated(sys.executable)
    assert table.Half.stored().trainings == fresh.trainings
