"""Cards: their sheets, the project's entries, times predicted from a sheet, and what a calibration writes."""

import dataclasses
import math
from pathlib import Path

import pytest

from perfsuite.devices.kernels import Kernel, KernelKind
from perfsuite.devices.model import calibrate
from perfsuite.devices.model.cards import Card, find_card, load_cards
from perfsuite.devices.model.device import ModelDevice
from perfsuite.devices.model.fitting import Row, fit_corrections
from perfsuite.devices.model.roofline import seconds, sheet_seconds
from perfsuite.devices.model.rules import shipped_rules
from perfsuite.devices.model.sustained import compute_share
from perfsuite.errors import DeviceMissing

ENTRY = 'title = "Mine"\nfloat32 = 1e12\nbandwidth = 1e11\nsms = 10\nmemory_bytes = 1e9\nsource = "here"\n'


def product(b, m, n, k, precision="float32"):
    kind = KernelKind.BMM if b > 1 else KernelKind.LINEAR
    size = 4 if precision == "float32" else 2
    return Kernel(
        "mm",
        kind,
        2.0 * b * m * n * k,
        size * b * (m * k + k * n),
        size * b * m * n,
        precision,
        1,
        (b, m, n, k),
    )


def test_every_card_of_the_table_has_its_figures_and_their_source():
    """Dense peaks, memory, bus, power, process; nothing without a source."""
    cards = load_cards()
    assert {
        "a10",
        "t4",
        "v100",
        "a100-40",
        "a100-80",
        "l4",
        "rtx3090",
        "rtx4090",
        "h100",
        "p100",
        "p4",
    } <= set(cards)
    for card in cards.values():
        assert len(card.source) > 40
        assert min(card.float32, card.bandwidth, card.sms, card.l2_bytes, card.watts, card.process_nm) > 0
        assert card.float32 <= card.peak("float16")


@pytest.mark.parametrize(
    ("file", "text"),
    [("pyproject.toml", "[tool.perfsuite.gpus.mine]\n" + ENTRY), ("perfsuite-gpus.toml", "[mine]\n" + ENTRY)],
)
def test_a_project_adds_its_card(tmp_path, file, text):
    """In either of two files."""
    (tmp_path / file).write_text(text)
    assert "Mine" == find_card("mine", tmp_path).title
    assert "NVIDIA A10" == find_card("a10", tmp_path).title


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[mine]\n" + ENTRY + "speed = 1\n", "unknown speed"),
        ('[mine]\ntitle = "x"\n', "missing bandwidth"),
        ("[mine]\n" + ENTRY.replace("1e11", "-1.0"), "less than 0"),
        ("[mine", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path, text, expected):
    """With what is wrong and what is known."""
    (tmp_path / "perfsuite-gpus.toml").write_text(text)
    with pytest.raises(DeviceMissing, match=expected):
        find_card("mine", tmp_path)


def test_an_unknown_card_lists_the_known():
    """And says how to add it."""
    with pytest.raises(DeviceMissing, match=r"unknown card 'a11'; known: .*a10.*calibrate"):
        find_card("a11")


def test_a_power_limit_holds_a_card_back():
    """A T4 sustains about half of its sheet, a V100 nearly all of it."""
    assert 0.45 < compute_share(find_card("t4"), shipped_rules().sheet) < 0.55
    assert compute_share(find_card("v100"), shipped_rules().sheet) > 0.9


def test_whole_waves_of_whole_tiles():
    """One tile more than fits into a wave takes another wave."""
    card = dataclasses.replace(find_card("v100"), kernel_seconds=0.0)
    full, over = (sheet_seconds(product(1, 128 * tiles, 128, 4096), card) for tiles in (80, 81))
    assert over > 1.2 * full


def test_half_precision_and_few_bytes_are_faster():
    """The tensor units' peak counts if there is one."""
    card = find_card("a10")
    assert sheet_seconds(product(1, 4096, 4096, 4096, "float16"), card) < 0.5 * sheet_seconds(
        product(1, 4096, 4096, 4096), card
    )


def test_a_fit_learns_a_slower_card():
    """Rows that all take twice as long are predicted twice as long."""
    card = find_card("t4")
    kernels = [product(1, m, n, 512) for m in (512, 1024, 4096) for n in (256, 2048, 8192)]
    slow = [Row(kernel, 2 * sheet_seconds(kernel, card)) for kernel in kernels]
    fitted = fit_corrections(card, slow, lambda kernel: sheet_seconds(kernel, card))
    for row in slow:
        assert row.seconds == pytest.approx(seconds(row.kernel, fitted), rel=0.1)
    assert fitted.is_calibrated
    assert "modelled, the card calibrated" == ModelDevice(fitted, Path.cwd()).facts().clock


def test_what_an_emulated_card_was_fitted_to_is_not_called_calibrated():
    """Its times came from the sheet, through the model."""
    card = dataclasses.replace(find_card("t4"), corrections={"linear": (0.1,)}, is_emulated=True)
    assert not card.is_calibrated
    assert (
        "modelled, the card from its sheet, by way of an emulated card"
        == ModelDevice(card, Path.cwd()).facts().clock
    )


def test_a_card_at_another_clock_for_a_moment_does_not_move_the_fit():
    """A third of the rows at half the time: the fit follows the others and does not average."""
    card = find_card("t4")
    kernels = [product(b, m, m, k) for b in (16, 64, 256) for m in (256, 512) for k in (64, 128, 256, 512)]
    rows = [
        Row(kernel, sheet_seconds(kernel, card) * (0.6 if i % 3 == 0 else 1.2))
        for i, kernel in enumerate(kernels)
    ]
    fitted = fit_corrections(card, rows, lambda kernel: sheet_seconds(kernel, card))
    usual = [row for i, row in enumerate(rows) if i % 3]
    for row in usual:
        assert row.seconds == pytest.approx(seconds(row.kernel, fitted), rel=0.12)


def test_corrections_of_another_version_are_refused():
    """Their coefficients would mean something else."""
    card = dataclasses.replace(find_card("t4"), corrections={"linear": (0.1, 0.2)})
    with pytest.raises(DeviceMissing, match=r"card 't4'.*linear are 2 numbers.*measure it again"):
        seconds(product(1, 64, 64, 64), card)


def test_a_card_survives_its_file(tmp_path):
    """What is written is what is read, and an entry is replaced, not repeated."""
    card = Card(
        "mine", "Mine", 1e12, 1e11, 4, 1e9, "a test", is_host=True,
        curves={"add": ((1.0, 1e-6), (1e6, 1e-3))}, products={"linear": (1e-6, 0.0, 1e-12, 0.0)},
    )  # fmt: skip
    other = dataclasses.replace(card, name="other")
    for entry in (card, other, dataclasses.replace(card, title="Again")):
        calibrate.write(entry, tmp_path)
    assert "Again" == find_card("mine", tmp_path).title
    assert other == find_card("other", tmp_path)
    assert 1 == (tmp_path / "perfsuite-gpus.toml").read_text().count('["mine"]')


def test_a_processor_runs_along_its_curves():
    """Linear between measured sizes in both logarithms; others as the typical one of their kind."""
    card = Card(
        "cpu", "CPU", 1e9, 1e9, 1, 1e9, "a test", is_host=True,
        curves={"add": ((100.0, 1e-6), (10_000.0, 1e-4)), "sum": ((1.0, 5.0),)},
        products={"linear": (1.0, 0.0, 0.0, 0.0)},
    )  # fmt: skip

    def add(size, op="add"):
        return seconds(Kernel(op, KernelKind.ELEMENTWISE, 0.0, size, 0, "float32"), card)

    assert [1e-6, 1e-6, 1e-5, 1e-4, 1e-3] == pytest.approx([add(s) for s in (1, 100, 1000, 10_000, 100_000)])
    assert add(1000) == add(1000, "exp")
    assert 1.0 == seconds(product(1, 8, 8, 8), card)
    assert math.isclose(5.0, seconds(Kernel("mean", KernelKind.REDUCTION, 0.0, 1, 0, "float32"), card))


def test_a_processors_thin_products_have_their_own_costs():
    """A side of 4 leaves vectors half empty; a card calibrated without such a class uses its bmm costs."""
    card = Card(
        "cpu", "CPU", 1e9, 1e9, 1, 1e9, "a test", is_host=True,
        products={"linear": (1.0, 0.0, 0.0, 0.0), "bmm": (2.0, 0.0, 0.0, 0.0), "thin": (3.0, 0.0, 0.0, 0.0)},
    )  # fmt: skip
    problems = [(1, 4, 4, 4), (8, 64, 64, 64), (8, 64, 4, 64), (8, 64, 64, 16)]
    assert [1.0, 2.0, 3.0, 3.0] == [seconds(product(*problem), card) for problem in problems]
    older = dataclasses.replace(card, products={"linear": (1.0, 0, 0, 0), "bmm": (2.0, 0, 0, 0)})
    assert 2.0 == seconds(product(8, 64, 4, 64), older)
