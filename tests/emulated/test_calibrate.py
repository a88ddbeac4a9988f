"""`python -m perfsuite calibrate` from end to end on an emulated card: every call runs, nothing passes for measured."""

import sys

import pytest

from perfsuite.devices.model.cards import find_card
from tests.emulated.runs import emulate

pytestmark = [pytest.mark.cuda_torch, pytest.mark.slow]


def calibrate(device, folder):
    words = (sys.executable, "-m", "perfsuite", "calibrate", "mine", f"--device={device}", "--sheet=a10")
    return emulate(*words, cwd=folder)


def test_an_emulated_card_is_not_calibrated_as_cuda(tmp_path):
    """Its figures would be stored as measured."""
    ran = calibrate("cuda", tmp_path)
    assert 1 == ran.returncode
    assert "the cards this process sees are emulated" in ran.stderr
    assert [] == list(tmp_path.iterdir())


def test_every_operator_is_timed_and_the_entry_says_that_it_was_emulated(tmp_path):
    """Also cuDNN's recurrent layers, whose weights are a list; the model's own predictions come out again."""
    ran = calibrate("emulated", tmp_path)
    assert 0 == ran.returncode, ran.stderr
    assert "predicted on an emulated card, nothing was measured" in ran.stdout
    card = find_card("mine", tmp_path)
    assert {"linear", "bmm", "recurrence", "convolution"} <= set(card.corrections)
    assert "predicted on an emulated card, not measured," in card.source
    assert not card.is_calibrated
