"""Build the cells' C once per machine, keep it in the user's cache and load it, or log why not."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCES = Path(__file__).parent / "kernels"
SWITCH = "SOCIAL_XLSTM_NATIVE"  # 0 turns the library off

# No fast-math: a NaN must come out as one. What it would allow and we want is written where it is wanted.
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-fopenmp")
_BUILD_SECONDS = 120
_log = logging.getLogger(__name__)


class Unavailable(Exception):
    """The library cannot be used here; the message says why."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the library; None, with the reason logged once, where it cannot be had."""
    try:
        return _load()
    except Unavailable as reason:
        _log.info("the cells run without their C library: %s", reason)
        return None


def _load() -> ctypes.CDLL:
    if os.environ.get(SWITCH) == "0":
        raise Unavailable(f"{SWITCH}=0")
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        raise Unavailable("no C compiler (cc, or what CC names) on the path; install one to have it")
    openmp = _openmp()
    name = f"social_xlstm-{_key(compiler, openmp)}.so"
    # The second place is for homes that cannot be written to, and new in every process: in a shared one
    # another user's library could wait.
    try:
        return ctypes.CDLL(str(_built(_cache(), name, compiler, openmp)))
    except OSError as error:
        _log.debug("cache not used: %s", error)
    try:
        with tempfile.TemporaryDirectory(prefix="social_xlstm-") as folder:
            return ctypes.CDLL(str(_built(Path(folder), name, compiler, openmp)))
    except OSError as error:
        raise Unavailable(f"neither cache nor temporary folder holds it: {error}") from error


def _openmp() -> str:
    """Return the path of the OpenMP runtime torch has loaded: a second one would have threads of its own."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError as error:
        raise Unavailable("which OpenMP runtime torch uses is known on Linux only") from error
    loaded = re.findall(r"(/\S*/lib(?:g|i)?omp\d?(?:-\w+)?\.so[.\d]*)$", maps, re.MULTILINE)
    if not loaded:
        raise Unavailable("this torch has no OpenMP runtime")
    return loaded[0]


def _key(compiler: str, openmp: str) -> str:
    """Return a name for everything the library depends on."""
    parts = [path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".c", ".h")]
    try:
        version = subprocess.run(
            [compiler, "--version"], capture_output=True, timeout=_BUILD_SECONDS, check=False
        )
        cpu = re.findall(
            r"^(?:model name|flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{compiler} does not run: {error}") from error
    settings = (*_FLAGS, compiler, openmp, torch.__version__, platform.machine(), *sorted(set(cpu)))
    parts += [version.stdout, *(word.encode() for word in settings)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]


def _cache() -> Path:
    """Return the user's cache folder for this; OSError where it is not the user's alone."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "social_xlstm"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise PermissionError(f"{folder} can be written to by others; remove it, or chmod 700 it")
    return folder


def _built(folder: Path, name: str, compiler: str, openmp: str) -> Path:
    """Return the library in this folder, building it where it is not there yet."""
    target = folder / name
    if target.exists():
        return target
    # Built aside and renamed: processes that start at once each see all of it or none.
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        objects = [f"{aside}/{source.stem}.o" for source in sorted(SOURCES.glob("*.c"))]
        for made in objects:
            _run([compiler, *_FLAGS, "-c", f"{SOURCES}/{Path(made).stem}.c", "-o", made])
        # Linked with torch's runtime by its path, not by -fopenmp, which would name the system's.
        _run([compiler, "-shared", *objects, openmp, "-lm", "-o", f"{aside}/{name}"])
        os.replace(f"{aside}/{name}", target)
    return target


def _run(command: list[str]) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} failed: {error}") from error
    if ran.returncode:
        lines = ran.stderr.splitlines() or [f"exit status {ran.returncode}"]
        first = next((line for line in lines if "error" in line.lower()), lines[0])
        raise Unavailable(f"{command[0]} failed: {first.strip()}")
