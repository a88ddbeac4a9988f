"""Which tests are performance tests, whether their markers make sense, and why one is skipped here."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perfsuite.devices import Device


_MODEL_HINT = "; --perf --perf-device=model:a10 counts and predicts it on a modelled one"


def is_perf_test(item: pytest.Item) -> bool:
    """Tell whether a test asks to be measured: by the marker, or by our own perf fixture."""
    return item.get_closest_marker("perf") is not None or _uses_our_fixture(item)


def is_measured(item: pytest.Item) -> bool:
    """Tell whether a test will use the device for itself: a performance test or a benchmark, not skipped."""
    is_benchmark = "benchmark" in getattr(item, "fixturenames", ())
    return (is_perf_test(item) or is_benchmark) and item.get_closest_marker("skip") is None


def _uses_our_fixture(item: pytest.Item) -> bool:
    if "perf" not in getattr(item, "fixturenames", ()):
        return False
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for definition in reversed(known.get("perf", ())):
        if definition.func.__module__ == "perfsuite.plugin":
            return True
        if "perf" not in definition.argnames:
            return False  # a fixture of the project's own that asks for no other: none of our business
    return False


def check_markers(items: Iterable[pytest.Item]) -> None:
    """Refuse all wrong markers at once, each with its test and the known arguments."""
    problems = []
    for item in items:
        if item.get_closest_marker("perf") is None and item.get_closest_marker("multi_gpu") is None:
            continue
        from perfsuite.collect.limits import parse_markers
        from perfsuite.errors import InvalidMarker

        try:
            parse_markers(item.iter_markers("perf"))
            accelerators_needed(item)
        except InvalidMarker as error:
            problems.append(f"{item.nodeid}: {error}")
    if problems:
        raise pytest.UsageError("\n".join(["perfsuite: wrong markers:", *problems]))


def accelerators_needed(item: pytest.Item) -> int:
    """Return how many accelerators a test asks for."""
    from perfsuite.errors import InvalidMarker

    several = item.get_closest_marker("multi_gpu")
    if several is None:
        return 1 if item.get_closest_marker("gpu") is not None else 0
    given = {**dict(zip(("n",), several.args, strict=False)), **several.kwargs}
    if len(several.args) > 1 or given.keys() - {"n"}:
        raise InvalidMarker("multi_gpu takes the number of devices and nothing else, such as multi_gpu(4)")
    count = given.get("n", 2)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidMarker(f"multi_gpu takes a whole number of devices, got {count!r}")
    return count


def is_ranked(item: pytest.Item) -> bool:
    """Tell whether a test is measured by several processes together."""
    return is_perf_test(item) and accelerators_needed(item) > 1


def skip_reason(
    item: pytest.Item, device: "Device | None", *, is_on: bool, ranks: int | None = None
) -> str | None:
    """Return why a test cannot run here, None if it can; `ranks` is how many torchrun started."""
    if is_perf_test(item) and not is_on:
        return "performance test: run with --perf"
    needed = accelerators_needed(item)
    if ranks is not None and is_perf_test(item):
        return _skip_on_ranks(item, needed, ranks)
    if not needed or (is_ranked(item) and device is not None and device.name == "cpu"):
        return None  # a CPU has room for any number of ranks
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
    """Ask torch, since a gpu test that measures nothing runs without --perf too."""
    from perfsuite.devices.cuda.device import available_count

    count = available_count()
    if count >= needed:
        return None
    return (
        f"needs an accelerator, torch sees none{_MODEL_HINT}"
        if count == 0
        else f"needs {needed} accelerators, there are {count}"
    )
