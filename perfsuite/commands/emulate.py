"""`python -m perfsuite emulate a10 -- command`: run anything on an emulated GPU and say what it did."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from perfsuite.devices.emulated import (
    Wanted,
    current,
    environment,
    new_folder,
    read_counts,
    render_counts,
    render_refused,
)
from perfsuite.errors import PerfsuiteError


def emulate(card: str, command: Sequence[str], *, has_counts: bool) -> int:
    """Run a command on emulated cards and return its exit status."""
    if not command:
        raise PerfsuiteError(
            "nothing to run; for instance: python -m perfsuite emulate a10 -- python train.py"
        )
    wanted = Wanted.from_name(card, Path.cwd())
    if current() is not None:
        raise PerfsuiteError(
            f"this process runs on emulated:{current()} already; one run has one kind of card"
        )
    folder = new_folder()
    try:
        variables = environment(wanted, os.environ, folder)
        if sys.stderr.isatty():  # a person should know; a log that is compared should not change
            print(_told(wanted), file=sys.stderr)
        status = _run(command, variables)
        counts = read_counts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if has_counts:
        print(render_counts(counts), file=sys.stderr)
    refused = render_refused(counts)
    if refused:
        print(f"perfsuite: {refused}", file=sys.stderr)
    return status


def _told(wanted: Wanted) -> str:
    cards = wanted.card.title if wanted.count == 1 else f"{wanted.count} {wanted.card.title}"
    return f"perfsuite: on {cards}, emulated: counts are real, times predicted, nothing is computed"


def _run(command: Sequence[str], variables: dict[str, str]) -> int:
    found = shutil.which(command[0], path=variables.get("PATH"))
    if found is None:
        raise PerfsuiteError(f"{command[0]}: there is no such command")
    process = subprocess.Popen([found, *command[1:]], env=variables)
    # Ctrl-C reaches the command as well: it ends in its own way, and its counts are read then.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status
