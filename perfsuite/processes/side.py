"""Start one side of a comparison: a pytest process on one version of the project, connected by a socket."""

import base64
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfsuite.errors import SessionFailed
from perfsuite.processes.checkout import Checkout
from perfsuite.processes.fresh import REQUEST, Command
from perfsuite.processes.world import child_environment

_ALL = "--continue-on-collection-errors"
_TAIL_LINES = 15
_PIN = "pin"  # a folder that contains only this perfsuite, so that it measures both sides


class Channel:
    """One end of a socket between two processes: one JSON object per line; end of file: the peer is gone."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._file = end.makefile("rw", encoding="utf-8", newline="\n")

    def send(self, **message: Any) -> None:
        """Send one message; a dead peer is noticed when it fails to reply."""
        try:
            self._file.write(json.dumps(message) + "\n")
            self._file.flush()
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self) -> dict[str, Any]:
        """Return the next message, or raise SessionFailed if the other process is gone."""
        try:
            text = self._file.readline()
        except ConnectionResetError:
            text = ""
        if not text:
            raise SessionFailed("the other process is gone")
        return dict(json.loads(text))

    def request(self, **message: Any) -> dict[str, Any]:
        """Send a message and return the reply."""
        self.send(**message)
        return self.receive()

    def close(self) -> None:
        """Close this end."""
        with contextlib.suppress(OSError):  # data still buffered for a dead peer
            self._file.close()
        self._end.close()


def pack(value: object) -> str:
    """Return an object as text for another process of this run, which has the same perfsuite."""
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def unpack(text: str) -> Any:
    """Return an object that another process of this run packed; safe to unpickle, as that process is ours."""
    return pickle.loads(base64.b64decode(text))


class SideProcess:
    """A process that runs one version on request."""

    def __init__(self, name: str, command: Command, checkout: Checkout, *, is_ref: bool) -> None:
        self.name = name
        self._output = tempfile.TemporaryFile("w+", errors="replace", dir=checkout.scratch)  # noqa: SIM115
        ours, theirs = socket.socketpair()
        folder = checkout.at_ref(command.folder) if is_ref else command.folder
        if not folder.is_dir():
            raise SessionFailed(f"{name} has no folder {command.folder.relative_to(checkout.project)}")
        request = checkout.scratch / f"request-{theirs.fileno()}.json"
        request.write_text(
            json.dumps(
                {
                    "role": "side",
                    "socket": theirs.fileno(),
                    "scratch": str(checkout.scratch),
                    "project": str(checkout.project) if is_ref else "",
                }
            )
        )
        arguments = _at_ref(command.arguments, checkout) if is_ref else list(command.arguments)
        cache = checkout.scratch / ("other" if is_ref else "this")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pytest", *command.pytest(cache, arguments), _ALL],
            cwd=folder,
            env={
                **child_environment(os.environ, count=2),
                REQUEST: str(request),
                "PYTHONPATH": _python_path(checkout, is_ref),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # this process handles Ctrl-C, and kills it together with its workers
        )
        theirs.close()
        self._channel = Channel(ours)

    def receive(self) -> dict[str, Any]:
        """Return the process's next message, or raise SessionFailed with its last output."""
        try:
            return self._channel.receive()
        except SessionFailed:
            raise SessionFailed(f"{self.name} ended early; its last output:\n{self._last_output()}") from None

    def send(self, **message: Any) -> None:
        """Send the process a message that it waits for."""
        self._channel.send(**message)

    def request(self, **message: Any) -> dict[str, Any]:
        """Send the process a request and return its reply."""
        self._channel.send(**message)
        return self.receive()

    def close(self) -> None:
        """Kill the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()
        self._output.close()

    def _last_output(self) -> str:
        self._output.seek(0)
        lines = self._output.read().splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines)


def _at_ref(arguments: Sequence[str], checkout: Checkout) -> list[str]:
    """Replace absolute paths inside the project by the same paths in the ref's checkout."""
    inside = f"{checkout.project}{os.sep}"
    return [argument.replace(inside, f"{checkout.tree}{os.sep}") for argument in arguments]


def _python_path(checkout: Checkout, is_ref: bool) -> str:
    """Return PYTHONPATH: the folders of this process, with editable installs at the side's version."""
    pin = checkout.scratch / _PIN
    if not pin.exists():
        pin.mkdir()
        (pin / "perfsuite").symlink_to(Path(__file__).resolve().parents[1])
    entries = [Path(entry or ".").resolve() for entry in (*sys.path, *_editable_folders())]
    prefix = Path(sys.prefix).resolve()
    inside = [p for p in entries if p.is_relative_to(checkout.project) and not p.is_relative_to(prefix)]
    folders = [checkout.at_ref(path) if is_ref else path for path in dict.fromkeys(inside)]
    inherited = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(map(str, [pin, *folders, *([inherited] if inherited else [])]))


def _editable_folders() -> list[str]:
    """Return the folders of editable installs that an import finder knows instead of sys.path."""
    modules = [sys.modules.get(getattr(finder, "__module__", "")) for finder in sys.meta_path]
    mappings = [getattr(module, "MAPPING", None) for module in modules]
    return [str(Path(p).parent) for m in mappings if isinstance(m, dict) for p in m.values()]
