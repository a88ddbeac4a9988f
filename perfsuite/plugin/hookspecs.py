"""The door for devices that perfsuite does not bring itself."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perfsuite.devices import Device


@pytest.hookspec(firstresult=True)
def pytest_perf_device(config: pytest.Config, name: str) -> "Device | None":
    """Return the device of that name (`--perf-device`), or None to leave it to perfsuite."""
