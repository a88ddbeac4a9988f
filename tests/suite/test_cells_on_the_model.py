"""The subject runs on a modelled card as it would on a real one."""

from pathlib import Path

import pytest
import torch

from perfsuite.devices.model.cards import find_card
from perfsuite.devices.model.device import ModelDevice
from social_xlstm.config import XLSTMConfig
from social_xlstm.model.cells import build_stack
from social_xlstm.model.cpu import library

pytestmark = pytest.mark.skipif(library.library() is None, reason="no C library on this machine")


@pytest.fixture
def card():
    """A modelled card that watches."""
    device = ModelDevice(find_card("a10"), Path(__file__).parents[2])
    device.begin_test()
    yield device.torch_name
    device.end_test()


@pytest.fixture(params=[(), (0,)], ids=["mlstm", "slstm"])
def block(request):
    """A block that C can run."""
    return build_stack(XLSTMConfig(16, 1, request.param), "fast").blocks[0]


def test_c_is_not_taken_on_a_modelled_card(card, block):
    """Counts would be those of the CPU's library, not of what a GPU launches."""
    assert not block.runs_in_c(torch.ones(2, 3, 16, device=card))
    assert not block.runs_in_c(torch.ones(2, 3, 16).to(card))


def test_it_is_taken_on_a_cpu_that_nobody_watches(block):
    """Where time is measured, the fast pass runs."""
    assert block.runs_in_c(torch.ones(2, 3, 16))
