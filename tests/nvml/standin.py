"""Build the stand-in for NVIDIA's library, write its scripts, run the real binding on it in a child."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
UUID = "GPU-12345678-1234-1234-1234-123456789abc"
OLD_BINDING = "nvidia-ml-py==12.575.51"


class Impossible(Exception):
    """The stand-in or a binding is not available on this machine."""


def build(folder, hidden=()):
    """Compile the library against NVIDIA's header; hidden functions are missing, as in an old driver."""
    found = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in found.submodule_search_locations] if found else []
    headers = [path for place in places for path in place.rglob("nvml.h")]
    if not headers or not shutil.which("cc"):
        raise Impossible("needs a C compiler and NVIDIA's nvml.h (nvidia-nvml-dev)")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    command += [f"-I{headers[0].parent}", "-Wl,-soname,libnvidia-ml.so.1"]
    if hidden:
        symbols = folder / "symbols.map"
        symbols.write_text(f"{{ local: {' '.join(f'{name};' for name in hidden)} }};")
        command.append(f"-Wl,--version-script={symbols}")
    subprocess.run([*command, "-o", folder / "libnvidia-ml.so.1", HERE / "standin.c"], check=True)
    return folder


def install_old_binding(folder):
    """Install the last binding of the 12 series in addition to the installed one of the 13 series."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        folder,
        OLD_BINDING,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Impossible(f"{OLD_BINDING} cannot be installed here")
    return folder


def script(*lines, card=UUID, speed=0):
    """Return a script with one card; at speed 0 its time advances only when the child says so."""
    return "\n".join([f"speed {speed}", *([f"card {card}"] if card else []), *lines]) + "\n"


def square_wave(low, high, period, until):
    """Return the lines of a utilization that jumps between two values."""
    lines, at = [], 0.0
    while at < until:
        lines += [f"at {at} utilization {low}", f"at {at + period / 2} utilization {high}"]
        at += period
    return lines


def environment(library, path, binding=None):
    """Return the environment of a child process that loads the stand-in instead of NVIDIA's library."""
    paths = [*([str(binding)] if binding else []), str(ROOT)]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "NVML_SCRIPT": str(path),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def watch(library, tmp_path, text, *, binding=None, **settings):
    """Sample the scripted card for some script seconds through the real binding; return the figures."""
    path = tmp_path / "script.txt"
    path.write_text(text)
    ran = subprocess.run(
        [sys.executable, HERE / "watch.py", json.dumps(settings)],
        env=environment(library, path, binding),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert 0 == ran.returncode, ran.stderr
    return json.loads(ran.stdout)
