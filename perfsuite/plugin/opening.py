"""The devices of one run: the session's own, those that markers name, and under torchrun all ranks'."""

import pytest

from perfsuite.devices import Device
from perfsuite.devices.own import join_ranks, open_own
from perfsuite.errors import DeviceMissing, PerfsuiteError
from perfsuite.plugin.settings import Options
from perfsuite.processes.world import ALONE, Place, Together


class Devices:
    """Open each device once, by its name."""

    def __init__(self, config: pytest.Config, options: Options, place: Place | None) -> None:
        self._config = config
        self.together: Together = ALONE
        name = options.settings({}).device
        self.first = self._open(name, place)
        if place is not None:
            self.first, self.together = join_ranks(place, self.first, options.rank_seconds)
        self._known = {name: self.first}

    def named(self, name: str) -> Device:
        """Return the device of that name, or say why it cannot be had."""
        if name not in self._known:
            if self.together.size > 1:
                raise DeviceMissing(
                    f"{name}: ranks measure on one kind of device; choose it by --perf-device"
                )
            device = self._open(name, None)
            if hasattr(self._config, "workerinput") and not device.modelled:
                raise DeviceMissing(f"{name} is not this worker's own device; measure this test with -n 0")
            self._known[name] = device
        return self._known[name]

    def of(self, name: str) -> Device:
        """Return the device of that name, or the session's where it cannot be had: the test will say why."""
        try:
            return self.named(name)
        except PerfsuiteError:
            return self.first

    def _open(self, name: str, place: Place | None) -> Device:
        offered: Device | None = self._config.hook.pytest_perf_device(config=self._config, name=name)
        return offered if offered is not None else open_own(name, self._config.rootpath, place)
