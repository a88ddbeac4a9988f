"""One line of progress behind the test's name while it is measured; nothing where nobody watches."""

import time
from typing import Any, TextIO

from perfsuite.report.terminal import progress

_PERIOD_SECONDS = 0.3
_SAVE, _RESTORE, _CLEAR_REST = "\x1b7", "\x1b8", "\x1b[K"


class ProgressLine:
    """Write behind the cursor and leave it where it was, so that pytest's own line stays whole."""

    def __init__(self, file: TextIO | None, room: int = 0) -> None:
        self._file = file
        self._room = room
        self._next = 0.0

    @classmethod
    def from_config(cls, config: Any) -> "ProgressLine":
        """Use pytest's terminal if it is one."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not getattr(reporter, "isatty", False):
            return cls(None)
        writer = config.get_terminal_writer()
        return cls(writer._file, writer.fullwidth - writer.width_of_current_line - 2)

    def __call__(self, phase: str, steps: int, seconds: float) -> None:
        """Show where a measurement is, a few times a second at most."""
        if self._file is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + _PERIOD_SECONDS
        text = progress(phase, steps, seconds)
        if len(text) <= self._room:
            self._write(f" {text}")

    def clear(self) -> None:
        """Remove the line."""
        if self._file is not None:
            self._write("")

    def _write(self, text: str) -> None:
        assert self._file is not None
        self._file.write(f"{_SAVE}{_CLEAR_REST}{text}{_RESTORE}")
        self._file.flush()
