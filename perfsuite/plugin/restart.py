"""Start pytest once more where its device needs another environment, and end what was begun for it."""

import os
import sys
from typing import Any

import pytest

from perfsuite.devices.open import environment_for
from perfsuite.devices.protocol import Device
from perfsuite.errors import PerfsuiteError
from perfsuite.plugin.screen import write_section


def restart_for_device(config: pytest.Config, name: str) -> None:
    """Replace this process by the same pytest command in the device's environment; return if it needs none.

    Before conftest files are loaded: they may import what must not be loaded without that environment.
    """
    try:
        wanted = environment_for(name, config.rootpath, os.environ)
    except PerfsuiteError as error:
        raise pytest.UsageError(f"perfsuite: {error}") from None
    if wanted is None:
        return
    if [str(word) for word in config.invocation_params.args] != sys.argv[1:]:
        raise pytest.UsageError(
            f"perfsuite: {name} needs a process that was started for it, and pytest was called from Python; "
            "run pytest as a command, or the whole program by: python -m perfsuite emulate CARD -- …"
        )
    _release_output(config)
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(wanted))


def _release_output(config: pytest.Config) -> None:
    """Give the terminal back: what pytest has caught so far would end in files that nobody reads."""
    capturing: Any = config.pluginmanager.getplugin("capturemanager")
    if capturing is not None:
        capturing.stop_global_capturing()
    sys.stdout.flush()
    sys.stderr.flush()


class ClosingHooks:
    """Say at the end what the device has to say, and let it give back what lasts as long as the session."""

    def __init__(self, device: Device) -> None:
        self._device = device

    @pytest.hookimpl(trylast=True)  # after the table
    def pytest_terminal_summary(self, terminalreporter: "pytest.TerminalReporter") -> None:
        """Print the device's last words."""
        words = self._device.closing_words()
        if words:
            write_section(terminalreporter, self._device.name, [(text, "yellow") for text in words])

    def pytest_unconfigure(self) -> None:
        """Leave the device."""
        self._device.leave()
