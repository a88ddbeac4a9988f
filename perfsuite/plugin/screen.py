"""One line of progress behind the test's name while it is measured; nothing where nobody watches."""

import os
import time
from typing import Any, TextIO

from perfsuite.report.terminal import progress

_PERIOD_SECONDS = 0.3
_SAVE, _RESTORE, _CLEAR_REST = "\x1b7", "\x1b8", "\x1b[K"


def open_terminal(config: Any) -> TextIO | None:
    """Return a way to the terminal that stays open while pytest captures a test's output."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not reporter.isatty:
        return None
    return os.fdopen(os.dup(config.get_terminal_writer()._file.fileno()), "w", encoding="utf-8")


class ProgressLine:
    """Write behind the cursor and leave it where it was, so that pytest's own line stays whole."""

    def __init__(self, file: TextIO | None, room: int = 0) -> None:
        self._file = file
        self._room = room
        self._next = 0.0

    @classmethod
    def behind(cls, writer: Any, file: TextIO | None) -> "ProgressLine":
        """Use the room that is left behind what pytest's writer has written."""
        return cls(file, writer.fullwidth - writer.width_of_current_line - 2)

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
