"""Kernels by name, joined with the lines of the project that launch them."""

from collections.abc import Collection, Iterable, Mapping

from perfsuite.kernel_names import short_name, totals
from perfsuite.records import Reading

_MAX_KERNELS = 5  # below a missed limit
_MAX_LINES = 3  # of one kernel


def more_kernels(reading: Reading, before: Mapping[str, float], grown: Collection[str]) -> Iterable[str]:
    """Yield the kernels launched more often than in the baseline, most first, with lines that have grown."""
    if not before:
        return  # a baseline of counts alone
    more = {name: count - before.get(name, 0.0) for name, count in totals(reading.launched).items()}
    chosen = sorted((name for name in more if more[name] > 0), key=lambda name: (-more[name], name))
    for name in chosen[:_MAX_KERNELS]:
        at = _lines_of(name, reading)
        # A baseline has no lines of single kernels: of a kernel's lines those are meant that have grown.
        places = [place for place in at if place in grown] or list(at)
        yield f"+{more[name]:,.4g} {name} at {_listed([where(place, reading) for place in places])}"
    if len(chosen) > _MAX_KERNELS:
        yield f"and {len(chosen) - _MAX_KERNELS} further kernels"


def kernel_rows(reading: Reading, most: int) -> list[tuple[str, str, str]]:
    """Return short name, launches per step and lines of the kernels that are launched most often."""
    counts = totals(reading.launched)
    chosen = sorted(counts, key=lambda name: (-counts[name], name))[:most]
    return [
        (
            name,
            f"{counts[name]:,.4g}",
            _listed([f"{where(p, reading)} ({n:,.4g})" for p, n in _lines_of(name, reading).items()]),
        )
        for name in chosen
    ]


def _lines_of(short: str, reading: Reading) -> dict[str, float]:
    """Return the places that launch a kernel, those that launch it most often first."""
    found: dict[str, float] = {}
    for name, at in reading.launched.items():
        if short_name(name) == short:
            for place, count in at.items():
                found[place] = found.get(place, 0.0) + count
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def _listed(texts: list[str]) -> str:
    rest = len(texts) - _MAX_LINES
    return ", ".join([*texts[:_MAX_LINES], *([f"{rest} further lines"] if rest > 0 else [])])


def where(place: str, reading: Reading) -> str:
    """Return a place as file and line; as it is where it has no line."""
    path = place.partition(": ")[0].rpartition(" ")[0]
    line = reading.lines.get(place)
    return f"{path}:{line}" if path and line else place
