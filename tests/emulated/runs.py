"""Run code on emulated cards in a child process: with torch where a CUDA build is installed, or on the bare runtime."""

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from perfsuite.devices.emulated import launch
from perfsuite.devices.emulated.library import build, preloads
from perfsuite.devices.emulated.torch_build import TorchBuild
from perfsuite.errors import DeviceMissing

ROOT = Path(__file__).parents[2]
BARE = TorchBuild(
    "of no version", 13000, 92000, ("libcudart.so.13",), ("cudaGraphAddNode", "ncclGetErrorString"), {}
)
LONG = 0.4  # seconds of a kernel, beside which the calls around it take nothing
PRELUDE = """
import ctypes, json, os, time
cuda = ctypes.CDLL(None)
LONG = {LONG}
def at(kind=ctypes.c_void_p, value=None):
    return kind() if value is None else kind(value)
def made(call, *arguments):
    handle = ctypes.c_void_p()
    assert call(ctypes.byref(handle), *arguments) == 0
    return handle
def learn(name, seconds, grid=1):
    shape = (ctypes.c_uint32 * 6)(grid, 1, 1, 32, 1, 1)
    cuda.perfsuite_emulated_learn(0, name.encode(), shape, ctypes.c_uint64(round(1e9 * seconds)))
def kernel(name):
    function = ctypes.c_void_p()
    assert cuda.cuModuleGetFunction(ctypes.byref(function), None, name.encode()) == 0
    return function
def launch(function, stream=None, grid=1):
    assert cuda.cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, stream, None, None) == 0
def totals():
    counts, sizes = (ctypes.c_uint64 * 13)(), (ctypes.c_uint64 * 13)()
    cuda.perfsuite_emulated_totals(counts, sizes)
    names = "kernel library memset h2d d2h d2d h2h graph sync alloc free host_alloc refused".split()
    return {name: counts[i] for i, name in enumerate(names) if counts[i]}
def elapsed(first, second):
    milliseconds = ctypes.c_float()
    assert cuda.cudaEventElapsedTime(ctypes.byref(milliseconds), first, second) == 0
    return milliseconds.value / 1e3
def event(stream=None):
    found = made(cuda.cudaEventCreate)
    assert cuda.cudaEventRecord(found, stream) == 0
    return found
"""


def has_compiler():
    """Tell whether the runtime can be built here at all."""
    return sys.platform == "linux" and shutil.which(os.environ.get("CC") or "cc") is not None


def why_no_torch():
    """Say why nothing can run with torch on an emulated card here, "" where it can."""
    try:
        TorchBuild.installed()
    except DeviceMissing as why:
        return str(why)
    return "" if has_compiler() else "there is no C compiler"


@functools.cache
def _scripted_clock():
    """Return the folder of the scripted clock's library, which goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix="perfsuite-clock-")
    source, target = Path(__file__).parent / "clock.c", Path(folder.name) / "clock.so"
    compiler = os.environ.get("CC") or "cc"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", source, "-o", target], check=True)
    return folder


def on_bare(code, card="a10", is_clock_scripted=True, **variables):
    """Run code that calls the runtime through ctypes, without torch, and return what it printed as JSON."""
    folder = launch.new_folder()
    try:
        (folder / "card.txt").write_text(launch.describe(launch.Wanted.from_name(card)))
        libraries = preloads(build(BARE))
        if is_clock_scripted:
            libraries = f"{_scripted_clock().name}/clock.so:{libraries}"
        given = {**os.environ, "LD_PRELOAD": libraries, launch.RUN: str(folder), **variables}
        text = PRELUDE.replace("{LONG}", str(LONG)) + code
        ran = subprocess.run(
            [sys.executable, "-c", text], env=given, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (ran.returncode, ran.stdout[-500:], ran.stderr)
        return json.loads(ran.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_pytest(folder, *flags, **variables):
    """Run a project's tests in a process of their own, which becomes one on emulated cards if flags ask for them."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-p", "no:logging", *flags]
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)


def emulate(*words, card="a10", flags=(), cwd=None, **variables):
    """Run a command by `python -m perfsuite emulate`."""
    command = [sys.executable, "-m", "perfsuite", "emulate", card, *flags, "--", *map(str, words)]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command, env=given, cwd=cwd, capture_output=True, text=True, check=False)


def on_torch(code, card="a10", **variables):
    """Run code with torch on an emulated card and return what it printed last as JSON."""
    # A script that ends right after a backward may abort while Python shuts down (docs/emulated-gpu.md): these do not.
    leave = "import os, sys; sys.stdout.flush(); os._exit(0)"
    ran = emulate(sys.executable, "-c", f"{code}\n{leave}", card=card, **variables)
    assert ran.returncode == 0, (ran.returncode, ran.stdout[-500:], ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])
