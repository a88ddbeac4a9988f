"""Reading a doubtful HDF5 file first in a process of its own, since damage can crash or hang the library."""

import mmap
import signal
import subprocess
import sys
from pathlib import Path

from social_xlstm.errors import InputError

# Files of the newer format carry checksums of their structure, so damage is an error there. Those of the
# older one, and heaps of variable-length strings, do not: fuzzing finds bytes that kill it or hang it.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST_CHECKED_VERSION = 2
_HEAP = b"GCOL"
_READER = Path(__file__).with_name("trial_reader.py")
_SECONDS, _BYTES_PER_SECOND = 15.0, 20e6


def is_unchecked(path: Path) -> bool:
    """Tell whether damage to a file's structure could go unnoticed by the library."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(SIGNATURE) + len(SIGNATURE)
        return data[at] < _FIRST_CHECKED_VERSION or data.find(_HEAP) >= 0


def try_reading(path: Path, *, seconds: float | None = None) -> None:
    """Refuse a file that a reading process does not survive or does not finish in time."""
    limit = _SECONDS + path.stat().st_size / _BYTES_PER_SECOND if seconds is None else seconds
    advice = "copy it again or make it anew"
    try:
        # -P: this folder's inspect.py must not stand in for Python's.
        command = [sys.executable, "-P", str(_READER), str(path)]
        ended = subprocess.run(command, timeout=limit, capture_output=True, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"{path} is damaged (reading it does not end within {limit:.0f} s); {advice}"
        ) from error
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        raise InputError(f"{path} is damaged (reading it ends the process with {name}); {advice}")
    if ended.returncode > 0:
        reason = ended.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise InputError(
            f"{path} cannot be tried out ({reason[-1]}); is h5py installed for {sys.executable}?"
        )
