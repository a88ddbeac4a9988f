"""The lock file of one device: locked by the kernel, shared by users who need not trust each other."""

import errno
import getpass
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfsuite.errors import LockUnusable

try:
    import fcntl
except ModuleNotFoundError:  # Windows: two runs there are not kept apart
    fcntl = None  # type: ignore[assignment]

FOLDER = "PERFSUITE_LOCK_DIR"
IS_KNOWN = fcntl is not None
_SHARED_FOLDER, _SHARED_FILE = 0o1777, 0o666
_MOST_BYTES, _MOST_SHOWN = 4096, 200


@dataclass(frozen=True)
class Holder:
    """Who holds a lock, as the holder itself wrote it down."""

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
        """Read what a holder wrote, None where it has not yet or it is no such thing."""
        try:
            told = json.loads(text)
            return cls(int(told["pid"]), *(_harmless(told[name]) for name in ("user", "command", "since")))
        except (ValueError, TypeError, KeyError):
            return None

    def told(self) -> str:
        """Return the holder as it is shown."""
        return f"pid {self.pid} of {self.user} since {self.since} ({self.command})"


def _harmless(text: object) -> str:
    # Another user wrote it, and it goes to a terminal.
    return re.sub(r"[^\x20-\x7e\u00a0-\uffff]", "?", str(text))[:_MOST_SHOWN]


def lock_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of locks that all users of this machine share."""
    if named := environment.get(FOLDER):
        return Path(named).resolve()
    # Not TMPDIR: CI gives every job one of its own, and their locks would never meet.
    shared = Path("/tmp")
    place = shared if os.name == "posix" and shared.is_dir() else Path(tempfile.gettempdir())
    return place / "perfsuite-locks"


class LockFile:
    """A file that at most one process has locked; the kernel unlocks it when that process dies."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.lock"
        self.path = folder / self._name
        self._folder = folder
        self._number = self._open()

    def _open(self) -> int:
        folder = _open_folder(self._folder)
        try:
            number = _open_file(self._name, folder)
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:  # what is written would go elsewhere
                os.close(number)
                raise LockUnusable(f"{self.path} is no plain file; remove it")
            return number
        except OSError as error:
            why = "it is a link" if error.errno == errno.ELOOP else error.strerror
            text = f"{self.path} cannot be opened: {why}; name another folder by {FOLDER}"
            raise LockUnusable(text) from None
        finally:
            os.close(folder)

    def try_lock(self) -> bool:
        """Lock the file if nobody else has."""
        while True:
            try:
                fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError as error:
                raise LockUnusable(f"{self.path} cannot be locked: {error.strerror}") from None
            if self._is_current():
                return True
            fresh = self._open()
            os.close(self._number)
            self._number = fresh

    def _is_current(self) -> bool:
        """Tell whether the path still leads here: a cleaner of temporary folders may have removed it."""
        try:
            there = os.lstat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._number))

    def holder(self) -> Holder | None:
        """Return who says to hold the lock."""
        return Holder.from_text(os.pread(self._number, _MOST_BYTES, 0).decode("utf-8", "replace"))

    def sign(self, holder: Holder | None) -> None:
        """Write down who holds the lock, or that nobody does."""
        shortened = asdict(holder) | {"command": holder.command[:_MOST_SHOWN]} if holder else {}
        try:
            os.ftruncate(self._number, 0)
            os.pwrite(self._number, json.dumps(shortened).encode() if holder else b"", 0)
        except OSError:  # opened for reading only, or a full disk: the lock holds without a name on it
            return

    def close(self) -> None:
        """Let go; the last copy of the descriptor unlocks."""
        os.close(self._number)


def _open_folder(folder: Path) -> int:
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise LockUnusable(
            f"{folder} is no folder for locks: {error.strerror}; name another by {FOLDER}"
        ) from None
    if is_new and os.fstat(number).st_uid == os.getuid():
        os.fchmod(number, _SHARED_FOLDER)  # whatever the umask made of it
    return number


def _open_file(name: str, folder: int) -> int:
    plain = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    # Without O_CREAT first: with it Linux refuses others' files in a sticky folder (fs.protected_regular).
    try:
        return os.open(name, os.O_RDWR | plain, dir_fd=folder)
    except PermissionError:
        return os.open(name, os.O_RDONLY | plain, dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | plain, _SHARED_FILE, dir_fd=folder)
    except FileExistsError:  # another run was faster
        return os.open(name, os.O_RDWR | plain, dir_fd=folder)
    os.fchmod(number, _SHARED_FILE)
    return number
