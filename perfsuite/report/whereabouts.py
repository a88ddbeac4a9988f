"""Name the lines of code behind a counted figure: what grew since the baseline, or what is largest."""

from collections.abc import Iterable, Mapping

from perfsuite.metrics import Metric
from perfsuite.records import Reading
from perfsuite.units import show

_MOST_LINES = 5


def where(
    metric: Metric, reading: Reading, stored: Mapping[str, Mapping[str, float]] | None
) -> Iterable[str]:
    """Yield the places that count more than they did, the largest first; without a baseline the largest."""
    now = reading.places.get(metric.name, {})
    if stored is None:
        largest = sorted(now.items(), key=lambda entry: (-entry[1], entry[0]))[:_MOST_LINES]
        yield from (f"{show(count, metric.unit)} at {_told(place, reading)}" for place, count in largest)
        return
    before = stored.get(metric.name, {})
    grown = {place: count - before.get(place, 0.0) for place, count in now.items()}
    chosen = sorted((p for p in grown if grown[p] > 0), key=lambda place: (-grown[place], place))
    for place in chosen[:_MOST_LINES]:
        was = show(before.get(place, 0.0), metric.unit)
        yield f"{show(grown[place], metric.unit)} more (baseline {was}) at {_told(place, reading)}"
    if len(chosen) > _MOST_LINES:
        yield f"and at {len(chosen) - _MOST_LINES} further lines"


def _told(place: str, reading: Reading) -> str:
    """Return a place as file, line, function and the line's text."""
    head, _, text = place.partition(": ")
    path, _, function = head.rpartition(" ")
    line = reading.lines.get(place)
    if not path or not line:
        return place
    return f"{path}:{line} in {function}: {text}"
