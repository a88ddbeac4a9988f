"""The subject runs on a modelled card as it would on a real one."""

from pathlib import Path

import pytest
import torch

from perfsuite.devices.model.cards import find_card
from perfsuite.devices.model.device import ModelDevice
from social_xlstm.model.eager_pass import applies


@pytest.fixture
def card():
    """A modelled card that watches."""
    device = ModelDevice(find_card("a10"), Path(__file__).parents[2])
    device.begin_test()
    yield device.torch_name
    device.end_test()


def test_passes_written_for_a_cpu_are_not_taken_on_a_modelled_card(card):
    """Counts would be those of the CPU's passes, not of what a GPU launches."""
    assert not applies(torch.ones(2, 3, 4, device=card))
    assert not applies(torch.ones(2, 3, 4).to(card))


def test_they_are_taken_on_a_cpu_that_nobody_watches():
    """Where time is measured, the fast pass runs."""
    assert applies(torch.ones(2, 3, 4))
