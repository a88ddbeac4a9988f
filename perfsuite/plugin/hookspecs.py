"""The hook through which projects and plugins add their own devices."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perfsuite.devices.protocol import Device


@pytest.hookspec(firstresult=True)
def pytest_perf_device(config: pytest.Config, name: str) -> "Device | None":
    """Return the device of that name (`--perf-device`), or None to let perfsuite open it."""
