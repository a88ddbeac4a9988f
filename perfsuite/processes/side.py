"""Start one side of a comparison: a pytest process in its own version of the project, on a line to us."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import perfsuite
from perfsuite.errors import SessionFailed
from perfsuite.processes.checkout import Checkout
from perfsuite.processes.family import for_children
from perfsuite.processes.fresh import REQUEST, Command
from perfsuite.processes.line import Line

_ALL = "--continue-on-collection-errors"
_TAIL_LINES = 15
_PIN = "pin"  # a folder with nothing but this perfsuite: both sides are measured by the same one


class ArmProcess:
    """A process that runs one version when told to."""

    def __init__(self, name: str, command: Command, checkout: Checkout, *, is_other: bool) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile("w+", errors="replace", dir=checkout.scratch)  # noqa: SIM115
        ours, theirs = socket.socketpair()
        folder = checkout.there(command.folder) if is_other else command.folder
        if not folder.is_dir():
            raise SessionFailed(f"{name} has no folder {command.folder.relative_to(checkout.project)}")
        request = checkout.scratch / f"request-{theirs.fileno()}.json"
        request.write_text(
            json.dumps(
                {
                    "role": "arm",
                    "socket": theirs.fileno(),
                    "scratch": str(checkout.scratch),
                    "project": str(checkout.project) if is_other else "",
                }
            )
        )
        arguments = _translated(command.arguments, checkout) if is_other else list(command.arguments)
        cache = checkout.scratch / ("other" if is_other else "this")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pytest", *command.pytest(cache, arguments), _ALL],
            cwd=folder,
            env={
                **for_children(os.environ, count=2),
                REQUEST: str(request),
                "PYTHONPATH": _python_path(checkout, is_other),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C is ours to handle, and its workers die with it
        )
        theirs.close()
        self._line = Line(ours)

    def receive(self) -> dict[str, Any]:
        """Return what the process says next, or why it says nothing any more."""
        try:
            return self._line.receive()
        except SessionFailed:
            raise SessionFailed(f"{self.name} ended early; it said:\n{self._last_words()}") from None

    def tell(self, **message: Any) -> None:
        """Tell the process something it waits for."""
        self._line.send(**message)

    def ask(self, **message: Any) -> dict[str, Any]:
        """Tell the process what to do and return what it says to that."""
        self._line.send(**message)
        return self.receive()

    def close(self) -> None:
        """End the process and all it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._line.close()
        self._said.close()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines = self._said.read().splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines)


def _translated(arguments: Sequence[str], checkout: Checkout) -> list[str]:
    """Turn absolute paths into the project into paths of the other version."""
    inside = f"{checkout.project}{os.sep}"
    return [argument.replace(inside, f"{checkout.tree}{os.sep}") for argument in arguments]


def _python_path(checkout: Checkout, is_other: bool) -> str:
    """Return where modules are looked for: as here, an editable install replaced by the other version."""
    pin = checkout.scratch / _PIN
    if not pin.exists():
        pin.mkdir()
        (pin / "perfsuite").symlink_to(Path(perfsuite.__file__).resolve().parent)
    mine = [Path(entry or ".").resolve() for entry in (*sys.path, *_editable_folders())]
    prefix = Path(sys.prefix).resolve()
    inside = [p for p in mine if p.is_relative_to(checkout.project) and not p.is_relative_to(prefix)]
    folders = [checkout.there(path) if is_other else path for path in dict.fromkeys(inside)]
    before = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(map(str, [pin, *folders, *([before] if before else [])]))


def _editable_folders() -> list[str]:
    """Return the folders of editable installs that are known to a finder instead of sys.path."""
    modules = [sys.modules.get(getattr(finder, "__module__", "")) for finder in sys.meta_path]
    mappings = [getattr(module, "MAPPING", None) for module in modules]
    return [str(Path(p).parent) for m in mappings if isinstance(m, dict) for p in m.values()]
