"""The counts that the modelled card is held against are what the emulated card counts."""

import sys

import pytest

from benchmarks.emulated_table import table
from benchmarks.emulated_table.__main__ import count_emulated

pytestmark = pytest.mark.cuda_torch

# What another torch launches otherwise. Built for CUDA 12, a kernel takes 4 KiB of arguments and not 32: over hundreds of
# tensors the norm takes 2 launches and not 1, its scaling 4 and not 1, the fused optimizer 6 and not 1.
OTHERWISE = {"2.9.1+cu128": {"one encoder per detector, in a loop": {"kernels": 9}}}


@pytest.mark.slow
def test_the_stored_half_is_what_the_emulated_card_counts():
    """Counted anew by the torch at hand, in a process of its own."""
    fresh, stored = count_emulated(sys.executable), table.Half.stored()
    expected = {title: dict(row) for title, row in stored.trainings.items()}
    for title, more in OTHERWISE.get(fresh.torch, {}).items():
        for name, count in more.items():
            expected[title][name] += count
    assert expected == fresh.trainings
