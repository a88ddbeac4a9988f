"""A line between two processes: one JSON object a line, and the other's death is the end of the file."""

import contextlib
import json
import socket
from typing import Any

from perfsuite.errors import SessionFailed


class Line:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._file = end.makefile("rw", encoding="utf-8", newline="\n")

    def send(self, **message: Any) -> None:
        """Send one message; a dead listener is noticed when it should answer."""
        try:
            self._file.write(json.dumps(message) + "\n")
            self._file.flush()
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self) -> dict[str, Any]:
        """Return the next message, or raise SessionFailed where the other process is gone."""
        try:
            text = self._file.readline()
        except ConnectionResetError:
            text = ""
        if not text:
            raise SessionFailed("the other process is gone")
        return dict(json.loads(text))

    def ask(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the answer."""
        self.send(**message)
        return self.receive()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):  # what was buffered for a dead listener
            self._file.close()
        self._end.close()
