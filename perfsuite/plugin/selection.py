"""Select tests: which are performance tests, whether their markers are valid, and why one is skipped."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perfsuite.collect.markers import MarkerValues
    from perfsuite.devices.protocol import Device


_PARSED: "pytest.StashKey[tuple[tuple[pytest.Mark, ...], MarkerValues | None]]" = pytest.StashKey()
_MODEL_HINT = "; --perf --perf-device=model:a10 counts and predicts it on a modelled one"


def is_perf_test(item: pytest.Item) -> bool:
    """Return whether a test is a performance test: by the perf marker, or by our perf fixture."""
    return item.get_closest_marker("perf") is not None or _uses_our_fixture(item)


def is_measured(item: pytest.Item) -> bool:
    """Return whether a test needs the device to itself: a performance test or a benchmark, not skipped."""
    is_benchmark = "benchmark" in getattr(item, "fixturenames", ())
    return (is_perf_test(item) or is_benchmark) and item.get_closest_marker("skip") is None


def _uses_our_fixture(item: pytest.Item) -> bool:
    if "perf" not in getattr(item, "fixturenames", ()):
        return False
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for definition in reversed(definitions.get("perf", ())):
        if definition.func.__module__ == "perfsuite.plugin":
            return True
        if "perf" not in definition.argnames:
            return False  # the project's fixture of the same name, which does not use ours
    return False


def marker_values(item: pytest.Item) -> "MarkerValues":
    """Return the values of a test's perf markers; cached, and parsed again if a marker was added later."""
    from perfsuite.collect.markers import parse_markers

    marks = tuple(item.iter_markers("perf"))
    parsed_marks, values = item.stash.get(_PARSED, ((), None))
    if values is None or parsed_marks != marks:
        values = parse_markers(marks)
        item.stash[_PARSED] = (marks, values)
    return values


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Raise one error for all wrong markers, each with its test and the known arguments."""
    problems = []
    for item in items:
        if item.get_closest_marker("perf") is None and item.get_closest_marker("multi_gpu") is None:
            continue
        from perfsuite.errors import InvalidMarker

        try:
            marker_values(item)
            accelerators_needed(item)
        except InvalidMarker as error:
            problems.append(f"{item.nodeid}: {error}")
    if problems:
        raise pytest.UsageError("\n".join(["perfsuite: wrong markers:", *problems]))


def accelerators_needed(item: pytest.Item) -> int:
    """Return how many accelerators a test needs."""
    from perfsuite.errors import InvalidMarker

    marker = item.get_closest_marker("multi_gpu")
    if marker is None:
        return 1 if item.get_closest_marker("gpu") is not None else 0
    arguments = {**dict(zip(("n",), marker.args, strict=False)), **marker.kwargs}
    if len(marker.args) > 1 or arguments.keys() - {"n"}:
        raise InvalidMarker("multi_gpu takes the number of devices and nothing else, such as multi_gpu(4)")
    count = arguments.get("n", 2)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidMarker(f"multi_gpu takes a whole number of devices, got {count!r}")
    return count


def is_ranked(item: pytest.Item) -> bool:
    """Return whether a test is measured by several processes together."""
    return is_perf_test(item) and accelerators_needed(item) > 1


def skip_reason(
    item: pytest.Item, device: "Device | None", *, is_enabled: bool, ranks: int | None = None
) -> str | None:
    """Return why a test cannot run here, None if it can; `ranks` is how many torchrun started."""
    if is_perf_test(item) and not is_enabled:
        return "performance test: run with --perf"
    needed = accelerators_needed(item)
    if ranks is not None and is_perf_test(item):
        return _skip_on_ranks(item, needed, ranks)
    if not needed or (is_ranked(item) and device is not None and device.facts().kind == "cpu"):
        return None  # a CPU can run any number of ranks
    if device is None:
        return _skip_without_run(needed)
    if not device.is_accelerator:
        return f"needs an accelerator, --perf-device is {device.name}{_MODEL_HINT}"
    return None if device.count() >= needed else f"needs {needed} accelerators, there are {device.count()}"


def _skip_on_ranks(item: pytest.Item, needed: int, ranks: int) -> str | None:
    if not is_ranked(item):
        return "measured by one process; run it without torchrun"
    return None if ranks >= needed else f"needs {needed} ranks, torchrun started {ranks}"


def _skip_without_run(needed: int) -> str | None:
    """Count torch's accelerators, since a gpu test that measures nothing runs without --perf too."""
    from perfsuite.devices.open import accelerator_count

    count = accelerator_count()
    if count >= needed:
        return None
    return (
        f"needs an accelerator, torch sees none{_MODEL_HINT}"
        if count == 0
        else f"needs {needed} accelerators, there are {count}"
    )
