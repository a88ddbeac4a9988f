"""Hold devices for one run, so that a second run on this machine queues instead of disturbing the first."""

import json
import os
import time
from collections.abc import Callable, Iterable, MutableMapping

from perfsuite.errors import DeviceBusy, LockUnusable
from perfsuite.processes.lock_file import IS_KNOWN, Holder, LockFile, lock_folder

HELD = "PERFSUITE_HELD"  # device → id of the process that holds it, for the children of that process
_LOOK_SECONDS = 0.25
_REMIND_SECONDS = 60.0

Say = Callable[[str], None]


class Held:
    """Devices held until released, or until this process dies."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._environment = environment
        self._files: dict[str, LockFile] = {}
        if hasattr(os, "register_at_fork"):
            # A copy in a loader's worker would hold the device after this process was killed.
            os.register_at_fork(after_in_child=self._forget)

    def add(self, name: str, file: LockFile, holder: Holder) -> None:
        """Keep a lock that was taken, and hand the right to it down to children."""
        file.sign(holder)
        self._files[name] = file
        self._environment[HELD] = json.dumps({**inherited(self._environment), name: os.getpid()})

    def release(self) -> None:
        """Let all go."""
        left = {name: pid for name, pid in inherited(self._environment).items() if name not in self._files}
        for file in self._files.values():
            file.sign(None)
        self._forget()
        if left:
            self._environment[HELD] = json.dumps(left)
        else:
            self._environment.pop(HELD, None)

    def _forget(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def hold(
    names: Iterable[str],
    *,
    timeout: float,
    command: str,
    say: Say,
    environment: MutableMapping[str, str] = os.environ,
) -> Held:
    """Take the lock of every device, waiting for other runs; one process may do it on behalf of several.

    All runs take theirs in the same order, so that no two wait for each other. A device that an ancestor
    holds is ours already. Raises DeviceBusy when the time is up, with nothing held.
    """
    held = Held(environment)
    wait = _Wait(timeout, say)
    try:
        for name in sorted(set(names)) if IS_KNOWN else ():
            try:
                file = LockFile(lock_folder(environment), name)
                is_ours = _take(name, file, wait, environment)
            except LockUnusable as error:
                say(f"perfsuite: {name} is measured without a lock, other runs may disturb it: {error}")
                continue
            if is_ours:
                held.add(name, file, Holder.from_here(command))
    except BaseException:  # also Ctrl-C: nothing half held stays behind
        held.release()
        raise
    return held


def inherited(environment: MutableMapping[str, str]) -> dict[str, int]:
    """Return which devices this process or an ancestor holds, and which process that is."""
    try:
        return {str(name): int(pid) for name, pid in json.loads(environment.get(HELD, "{}")).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _take(name: str, file: LockFile, wait: "_Wait", environment: MutableMapping[str, str]) -> bool:
    """Lock the file as soon as it is free; False where an ancestor has it for us."""
    ancestor = inherited(environment).get(name)
    try:
        while not file.try_lock():
            holder = file.holder()
            # The file must agree: the variable may have outlived the run that set it.
            if ancestor is not None and (holder is None or holder.pid == ancestor):
                file.close()
                return False
            wait.rest(name, holder)
    except BaseException:
        file.close()
        raise
    wait.over(name)
    return True


class _Wait:
    """The waiting of one run for all its devices: one limit, and words for whoever watches."""

    def __init__(self, timeout: float, say: Say) -> None:
        self._timeout = timeout
        self._say = say
        self._began = time.monotonic()
        self._told_at: dict[str, float] = {}

    def rest(self, name: str, holder: Holder | None) -> None:
        """Rest a little, or raise DeviceBusy when the time is up."""
        who = holder.told() if holder else "a process that left no name"
        waited = time.monotonic() - self._began
        if waited >= self._timeout:
            for_how_long = f"waited {shown(waited)}" if self._timeout else "not waited for"
            raise DeviceBusy(
                f"{name} is in use by another performance run: {who}; {for_how_long} "
                f"(--perf-lock-timeout={shown(self._timeout)}). Let it finish or end it, allow more time "
                "with --perf-lock-timeout, or measure on another device with --perf-device"
            )
        if name not in self._told_at:
            self._say(
                f"perfsuite: waiting for {name}, in use by {who}; this run begins when that one ends, or "
                f"gives up after {shown(self._timeout)} (--perf-lock-timeout; Ctrl-C gives up now)"
            )
            self._told_at[name] = waited
        elif waited - self._told_at[name] >= _REMIND_SECONDS:
            self._say(f"perfsuite: still waiting for {name} after {shown(waited)}, in use by {who}")
            self._told_at[name] = waited
        time.sleep(min(_LOOK_SECONDS, self._timeout - waited))

    def over(self, name: str) -> None:
        """Say that a device is free at last."""
        if name in self._told_at:
            self._say(f"perfsuite: {name} is free, measuring")


def shown(seconds: float) -> str:
    """Return a length of time as it is waited for."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
