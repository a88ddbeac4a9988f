"""Lock devices for one run, so that a second run on this machine waits instead of disturbing the first."""

import errno
import getpass
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.errors import DeviceBusy, LockUnusable

try:
    import fcntl
except ModuleNotFoundError:  # Windows: two runs there can disturb each other
    fcntl = None  # type: ignore[assignment]
FOLDER = "PERFSUITE_LOCK_DIR"
IS_SUPPORTED = fcntl is not None
_SHARED_FOLDER, _SHARED_FILE = 0o1777, 0o666
_MOST_BYTES, _MOST_SHOWN = 4096, 200
HELD = "PERFSUITE_HELD"  # JSON, device → id of the process that holds its lock; inherited by its children
_POLL_SECONDS = 0.25
_REMIND_SECONDS = 60.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, as it described itself in the lock file."""

    pid: int
    user: str
    command: str
    since: str

    @classmethod
    def from_here(cls, command: str) -> "Holder":
        """Describe this process."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container's user need not have a name
            user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
        return cls(os.getpid(), user, command, datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))

    @classmethod
    def from_text(cls, text: str) -> "Holder | None":
        """Parse a lock file's text; None if it is empty or not a holder's."""
        try:
            fields = json.loads(text)
            return cls(
                int(fields["pid"]), *(_sanitized(fields[name]) for name in ("user", "command", "since"))
            )
        except (ValueError, TypeError, KeyError):
            return None

    def describe(self) -> str:
        """Return the holder as text for messages."""
        return f"pid {self.pid} of {self.user} since {self.since} ({self.command})"


def _sanitized(text: object) -> str:
    # Another user wrote it, and it is printed to a terminal.
    return re.sub(r"[^\x20-\x7e\u00a0-\uffff]", "?", str(text))[:_MOST_SHOWN]


def lock_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of lock files, which all users of this machine share."""
    if override := environment.get(FOLDER):
        return Path(override).resolve()
    # Not TMPDIR: CI gives every job a different one, and their locks would never meet.
    shared = Path("/tmp")
    parent = shared if os.name == "posix" and shared.is_dir() else Path(tempfile.gettempdir())
    return parent / "perfsuite-locks"


class LockFile:
    """A file that at most one process can lock; the kernel unlocks it when that process dies."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.lock"
        self.path = folder / self._name
        self._folder = folder
        self._descriptor = self._open()

    def _open(self) -> int:
        folder = _open_folder(self._folder)
        try:
            descriptor = _open_file(self._name, folder)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # writing would change another file
                os.close(descriptor)
                raise LockUnusable(f"{self.path} is not a plain file; remove it")
            return descriptor
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            text = f"{self.path} cannot be opened: {why}; set {FOLDER} to another folder"
            raise LockUnusable(text) from None
        finally:
            os.close(folder)

    def try_lock(self) -> bool:
        """Lock the file unless another process has locked it."""
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                raise LockUnusable(f"{self.path} cannot be locked: {error.strerror}") from None
            if self._is_current():
                return True
            reopened = self._open()
            os.close(self._descriptor)
            self._descriptor = reopened

    def _is_current(self) -> bool:
        """Return whether the path is still this file: a cleaner of temporary folders may have removed it."""
        try:
            status = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, os.fstat(self._descriptor))

    def holder(self) -> Holder | None:
        """Return the holder named in the file."""
        return Holder.from_text(os.pread(self._descriptor, _MOST_BYTES, 0).decode("utf-8", "replace"))

    def sign(self, holder: Holder | None) -> None:
        """Write the holder into the file; None clears it."""
        shortened = asdict(holder) | {"command": holder.command[:_MOST_SHOWN]} if holder else {}
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(shortened).encode() if holder else b"", 0)
        except OSError:  # read-only or a full disk: the lock works without its holder's name
            return

    def close(self) -> None:
        """Close the file; closing the last copy of the descriptor unlocks it."""
        os.close(self._descriptor)


def _open_folder(folder: Path) -> int:
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise LockUnusable(
            f"{folder} cannot be used as the folder of locks: {error.strerror}; set {FOLDER} to another"
        ) from None
    if is_new and os.fstat(descriptor).st_uid == os.getuid():
        os.fchmod(descriptor, _SHARED_FOLDER)  # overrides the umask
    return descriptor


def _open_file(name: str, folder: int) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    # First without O_CREAT: with it, Linux refuses other users' files in a sticky folder
    # (fs.protected_regular).
    try:
        return os.open(name, os.O_RDWR | flags, dir_fd=folder)
    except PermissionError:
        return os.open(name, os.O_RDONLY | flags, dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, _SHARED_FILE, dir_fd=folder)
    except FileExistsError:  # another run was faster
        return os.open(name, os.O_RDWR | flags, dir_fd=folder)
    os.fchmod(descriptor, _SHARED_FILE)
    return descriptor


class DeviceLocks:
    """The locks that this process holds until it releases them or dies."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._environment = environment
        self._files: dict[str, LockFile] = {}
        if hasattr(os, "register_at_fork"):
            # A loader's worker inherits the descriptors and would keep the lock after this process is killed.
            os.register_at_fork(after_in_child=self._close)

    def add(self, name: str, file: LockFile, holder: Holder) -> None:
        """Keep a lock that was taken, and let child processes use the device too."""
        file.sign(holder)
        self._files[name] = file
        self._environment[HELD] = json.dumps({**held_devices(self._environment), name: os.getpid()})

    def release(self) -> None:
        """Release all locks."""
        held = held_devices(self._environment)
        remaining = {name: pid for name, pid in held.items() if name not in self._files}
        for file in self._files.values():
            file.sign(None)
        self._close()
        if remaining:
            self._environment[HELD] = json.dumps(remaining)
        else:
            self._environment.pop(HELD, None)

    def _close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def lock_devices(
    names: Iterable[str],
    *,
    timeout: float,
    command: str,
    say: Say,
    environment: MutableMapping[str, str] = os.environ,
) -> DeviceLocks:
    """Take the lock of every device, waiting for other runs; one process may do it on behalf of several.

    All runs take their locks in the same order, so that no two wait for each other. A device locked by an
    ancestor process can be used without a lock. Raises DeviceBusy after the timeout, with no lock held.
    """
    locks = DeviceLocks(environment)
    wait = _Wait(timeout, say)
    try:
        for name in sorted(set(names)) if IS_SUPPORTED else ():
            try:
                file = LockFile(lock_folder(environment), name)
                is_taken = _take(name, file, wait, environment)
            except LockUnusable as error:
                say(f"perfsuite: {name} is measured without a lock, other runs may disturb it: {error}")
                continue
            if is_taken:
                locks.add(name, file, Holder.from_here(command))
    except BaseException:  # also Ctrl-C: release what was taken so far
        locks.release()
        raise
    return locks


def held_devices(environment: MutableMapping[str, str]) -> dict[str, int]:
    """Return the devices that this process or an ancestor has locked, with that process's id."""
    try:
        return {str(name): int(pid) for name, pid in json.loads(environment.get(HELD, "{}")).items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _take(name: str, file: LockFile, wait: "_Wait", environment: MutableMapping[str, str]) -> bool:
    """Lock the file as soon as it is free; return False if an ancestor process has locked it."""
    ancestor = held_devices(environment).get(name)
    try:
        while not file.try_lock():
            holder = file.holder()
            # The file must name the same process: the variable may have outlived the run that set it.
            if ancestor is not None and (holder is None or holder.pid == ancestor):
                file.close()
                return False
            wait.pause(name, holder)
    except BaseException:
        file.close()
        raise
    wait.finish(name)
    return True


class _Wait:
    """The wait of one run for all its devices: one timeout, and messages for the user."""

    def __init__(self, timeout: float, say: Say) -> None:
        self._timeout = timeout
        self._say = say
        self._began = time.monotonic()
        self._reported_at: dict[str, float] = {}

    def pause(self, name: str, holder: Holder | None) -> None:
        """Sleep until the next attempt, or raise DeviceBusy after the timeout."""
        who = holder.describe() if holder else "an unknown process"
        waited = time.monotonic() - self._began
        if waited >= self._timeout:
            for_how_long = f"waited {duration_text(waited)}" if self._timeout else "not waited for"
            raise DeviceBusy(
                f"{name} is in use by another performance run: {who}; {for_how_long} "
                f"(--perf-lock-timeout={duration_text(self._timeout)}). Let it finish or stop it, allow more "
                "time with --perf-lock-timeout, or measure on another device with --perf-device"
            )
        if name not in self._reported_at:
            self._say(
                f"perfsuite: waiting for {name}, in use by {who}; this run starts when that one ends, or "
                f"gives up after {duration_text(self._timeout)} (--perf-lock-timeout; Ctrl-C gives up now)"
            )
            self._reported_at[name] = waited
        elif waited - self._reported_at[name] >= _REMIND_SECONDS:
            self._say(f"perfsuite: still waiting for {name} after {duration_text(waited)}, in use by {who}")
            self._reported_at[name] = waited
        time.sleep(min(_POLL_SECONDS, self._timeout - waited))

    def finish(self, name: str) -> None:
        """Report that a device is free, if the run waited for it."""
        if name in self._reported_at:
            self._say(f"perfsuite: {name} is free, measuring")


def duration_text(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
