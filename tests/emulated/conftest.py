"""What the tests of the emulated GPU need: a C compiler, and those with torch a CUDA build of it."""

import pytest

from tests.emulated import runs


def pytest_collection_modifyitems(items):
    """Skip what cannot run here, with the reason."""
    reason = runs.why_no_torch()
    for item in items:
        if "tests/emulated/" not in item.nodeid:
            continue
        if not runs.has_compiler():
            item.add_marker(pytest.mark.skip(reason="the emulated GPU needs Linux and a C compiler"))
        elif reason and item.get_closest_marker("cuda_torch"):
            item.add_marker(pytest.mark.skip(reason=reason))
