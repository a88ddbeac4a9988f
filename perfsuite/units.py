"""Parse "12 GiB", "85 %" and "30 ms" into numbers and format them again; ambiguous texts are refused."""

import math
import re
from enum import Enum


class Unit(Enum):
    """The unit of a number; the value is the name stored in files."""

    FRACTION = "fraction"
    BYTES = "bytes"
    SECONDS = "seconds"
    PER_SECOND = "1/s"
    RATIO = "ratio"
    COUNT = "count"


# Commas separate thousands only: "2,5" is refused, because it could mean 2.5 or 25.
_NUMBER = re.compile(
    r"\s*([+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*\Z"
)

_SUFFIXES: dict[Unit, dict[str, float]] = {
    Unit.FRACTION: {"%": 0.01, "": 1.0},
    Unit.BYTES: {
        "": 1,
        "b": 1,
        "kb": 1e3,
        "mb": 1e6,
        "gb": 1e9,
        "tb": 1e12,
        "kib": 2**10,
        "mib": 2**20,
        "gib": 2**30,
        "tib": 2**40,
    },
    Unit.SECONDS: {
        "": 1,
        "s": 1,
        "ms": 1e-3,
        "us": 1e-6,
        "µs": 1e-6,
        "μs": 1e-6,
        "ns": 1e-9,
        "min": 60,
        "h": 3600,
    },
    Unit.PER_SECOND: {"": 1, "/s": 1, "1/s": 1, "k/s": 1e3},
    Unit.RATIO: {"": 1, "x": 1, "×": 1, "%": 0.01},
    Unit.COUNT: {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12},
}

_EXAMPLES = {
    Unit.FRACTION: '"85 %" or 0.85',
    Unit.BYTES: '"12 GiB", "500 MB" or a number of bytes',
    Unit.SECONDS: '"30 ms", "2 s" or a number of seconds',
    Unit.PER_SECOND: "2000",
    Unit.RATIO: '1.3 or "1.3x"',
    Unit.COUNT: '250, "250 k" or "3 G"',
}


def parse(value: object, unit: Unit) -> float:
    """Return the number that a user wrote, or raise ValueError with an example."""
    example = _EXAMPLES[unit]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a number; write {example}")
    try:
        number = _parse_text(value, unit) if isinstance(value, str) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is not a finite number of at least 0; write {example}")
    if unit is Unit.FRACTION and number > 1:
        raise ValueError(f"{value!r} is more than the whole; write {example}")
    return number


def _parse_text(text: str, unit: Unit) -> float:
    match = _NUMBER.match(text)
    suffix = match[2].lower() if match else ""
    if not match or suffix not in _SUFFIXES[unit]:
        raise ValueError(f"{text!r} is not a {_NAMES[unit]}; write {_EXAMPLES[unit]}")
    return float(match[1].replace(",", "").replace("_", "")) * _SUFFIXES[unit][suffix]


_NAMES = {
    Unit.FRACTION: "share",
    Unit.BYTES: "size",
    Unit.SECONDS: "duration",
    Unit.PER_SECOND: "rate",
    Unit.RATIO: "ratio",
    Unit.COUNT: "count",
}

_BYTE_STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SECOND_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def show(value: float | None, unit: Unit) -> str:  # noqa: PLR0911  one return per unit
    """Return a number in human units, "–" for None (not measured)."""
    if value is None:
        return "–"
    match unit:
        case Unit.FRACTION:
            return f"{100 * value:.1f} %"
        case Unit.BYTES:
            return _scaled(value, _BYTE_STEPS, f"{value:.0f} B")
        case Unit.SECONDS:
            return _scaled(value, _SECOND_STEPS, f"{value:.3g} s")
        case Unit.PER_SECOND:
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        case Unit.RATIO:
            return f"{value:.2f}×" if value >= 0.01 or value == 0 else f"{value:.1e}"
        case Unit.COUNT:
            return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...], otherwise: str) -> str:
    for size, name in steps:
        if abs(value) >= size:
            number = value / size
            return f"{number:.0f} {name}" if number >= 1000 else f"{number:.3g} {name}"
    return otherwise
