"""Write to pytest's terminal: progress after a test's name, single lines, the closing section."""

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

import pytest

from perfsuite.report.terminal import Line, progress

_PERIOD_SECONDS = 0.3
_SAVE, _RESTORE, _CLEAR_REST = "\x1b7", "\x1b8", "\x1b[K"


def say(config: pytest.Config, text: str) -> None:
    """Write a line, to standard error if pytest has no terminal (in a worker of pytest-xdist)."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.ensure_newline()
        reporter.write_line(text)
        reporter.flush()
    elif sys.__stderr__ is not None:
        print(text, file=sys.__stderr__, flush=True)


def write_section(reporter: pytest.TerminalReporter, title: str, lines: Sequence[Line]) -> None:
    """Write lines below a title; nothing if there are none."""
    if lines:
        reporter.write_sep("=", title)
    for text, colour in lines:
        reporter.write_line(text, **({colour: True} if colour else {}))


def open_terminal(config: pytest.Config) -> TextIO | None:
    """Return a copy of the terminal's file that still works while pytest captures a test's output."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not reporter.isatty:
        return None
    return os.fdopen(os.dup(config.get_terminal_writer()._file.fileno()), "w", encoding="utf-8")


class ProgressLine:
    """Write after the cursor and move it back, so that pytest's line stays intact."""

    def __init__(self, file: TextIO | None, room: int = 0) -> None:
        self._file = file
        self._room = room
        self._next = 0.0

    @classmethod
    def behind(cls, config: pytest.Config, file: TextIO | None) -> "ProgressLine":
        """Use the space that is left after pytest's text on the current line."""
        if file is None:
            return cls(None)
        writer = config.get_terminal_writer()
        return cls(file, writer.fullwidth - writer.width_of_current_line - 2)

    def __call__(self, phase: str, steps: int, seconds: float) -> None:
        """Show the progress of a measurement, a few times a second at most."""
        if self._file is None or (now := time.monotonic()) < self._next:
            return
        self._next = now + _PERIOD_SECONDS
        text = progress(phase, steps, seconds)
        if len(text) <= self._room:
            self._write(f" {text}")

    def clear(self) -> None:
        """Clear the progress text."""
        if self._file is not None:
            self._write("")

    def _write(self, text: str) -> None:
        assert self._file is not None
        self._file.write(f"{_SAVE}{_CLEAR_REST}{text}{_RESTORE}")
        self._file.flush()
