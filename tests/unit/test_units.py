"""Human units: clear values are parsed, ambiguous ones are refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.units import Unit, parse, show


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("85 %", Unit.FRACTION, 0.85),
        ("85%", Unit.FRACTION, 0.85),
        (0.85, Unit.FRACTION, 0.85),
        ("100 %", Unit.FRACTION, 1.0),
        ("12 GiB", Unit.BYTES, 12 * 2**30),
        ("500 MB", Unit.BYTES, 500e6),
        ("1.5gib", Unit.BYTES, 1.5 * 2**30),
        (1024, Unit.BYTES, 1024),
        ("30 ms", Unit.SECONDS, 0.03),
        ("5 µs", Unit.SECONDS, 5e-6),
        ("2 min", Unit.SECONDS, 120),
        (2, Unit.SECONDS, 2),
        ("2,000", Unit.PER_SECOND, 2000),
        ("12,345,678.5", Unit.PER_SECOND, 12345678.5),
        ("2_000/s", Unit.PER_SECOND, 2000),
        ("1.3x", Unit.RATIO, 1.3),
        ("1.3×", Unit.RATIO, 1.3),
        ("1e-4", Unit.RATIO, 1e-4),
    ],
)
def test_reads_what_people_write(text, unit, expected):
    """Numbers with their unit are parsed."""
    assert expected == pytest.approx(parse(text, unit))


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (85, Unit.FRACTION),
        ("101 %", Unit.FRACTION),
        ("-1 %", Unit.FRACTION),
        ("12 G", Unit.BYTES),
        ("12 parsec", Unit.SECONDS),
        ("fast", Unit.PER_SECOND),
        ("", Unit.SECONDS),
        (True, Unit.RATIO),
        (None, Unit.RATIO),
        (float("nan"), Unit.SECONDS),
        (float("inf"), Unit.SECONDS),
        ("1 2 ms", Unit.SECONDS),
        ("2,5 ms", Unit.SECONDS),  # a decimal comma, or 25?
        ("1,00", Unit.PER_SECOND),
        ("1000,000", Unit.PER_SECOND),
        (10**400, Unit.PER_SECOND),
        ("1e999", Unit.PER_SECOND),
    ],
)
def test_refuses_what_is_not_clear(text, unit):
    """A wrong value is refused with an example of a right one."""
    with pytest.raises(ValueError, match="write "):
        parse(text, unit)


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (None, Unit.BYTES, "–"),
        (0.61, Unit.FRACTION, "61.0 %"),
        (12 * 2**30, Unit.BYTES, "12 GiB"),
        (0, Unit.BYTES, "0 B"),
        (0.0312, Unit.SECONDS, "31.2 ms"),
        (0.0, Unit.SECONDS, "0 s"),
        (1412.4, Unit.PER_SECOND, "1,412"),
        (1.234, Unit.PER_SECOND, "1.23"),
        (1.3, Unit.RATIO, "1.30×"),
        (1e-6, Unit.RATIO, "1.0e-06"),
    ],
)
def test_shows_what_people_read(value, unit, expected):
    """Figures are shown in the unit a person would choose."""
    assert expected == show(value, unit)


@given(st.text(max_size=20), st.sampled_from(list(Unit)))
def test_any_text_is_a_number_or_a_value_error(text, unit):
    """No text makes the parser fail in any other way."""
    with contextlib.suppress(ValueError):
        assert parse(text, unit) >= 0
