"""The modelled card against what the emulated one counted, as the repository keeps it."""

import pytest
import torch

from benchmarks.emulated_table import table
from benchmarks.emulated_table.counting import ROOT, modelled
from benchmarks.emulated_table.trainings import TRAININGS

STORED = table.Half.stored()
PAGE = (ROOT / "docs" / "emulated-counts.md").read_text(encoding="utf-8")
# The rules are torch 2.12's and 2.13's: another torch may launch something else.
KNOWN_TORCH = ("2.12.", "2.13.")


@pytest.mark.skipif(not torch.__version__.startswith(KNOWN_TORCH), reason=f"the rules are for {KNOWN_TORCH}")
@pytest.mark.parametrize("title", [title for title in TRAININGS if title not in table.REASONS])
def test_the_modelled_card_counts_what_the_emulated_one_counted(title):
    """Kernels, copies in every direction, syncs and the peak to the byte; the page says the same."""
    found = modelled(title).row()
    assert STORED.trainings[title] == found
    cells = " | ".join([title, *table.Row(title, found, found).cells(), "yes"])
    assert f"| {cells} |" in PAGE


def test_every_training_is_stored_and_every_exception_named():
    """None is left out, and those that cannot agree say why on the page."""
    assert list(TRAININGS) == list(STORED.trainings)
    assert 24 <= len(TRAININGS)
    assert set(table.REASONS) < set(TRAININGS)
    assert all(f"{reason}." in PAGE.replace("\n", " ") for reason in table.REASONS.values())
    assert f"**{len(TRAININGS) - len(table.REASONS)} of {len(TRAININGS)} agree in every column.**" in PAGE


def test_a_difference_is_told_with_both_numbers():
    """The emulated number comes first, what agrees is counted, and a reason is marked."""
    counts = dict.fromkeys(table.COLUMNS, 1)
    rows = [table.Row("MLP", counts, counts), table.Row("RNN", counts, {**counts, "kernels": 1200})]
    text, page = table.render(rows), table.document(rows, "2.12.1+cu130")
    assert "1 / 1,200" in text
    assert text.endswith("1 of 2 agree")
    assert "| RNN | 1 / 1,200 | 1 | 1 | 1 | 1 | 1 | no [1] |" in page
    assert f"[1] {table.REASONS['RNN']}." in page
