"""A CUDA extension of torch, compiled by torch.utils.cpp_extension, in a training that is gated on an emulated card."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite.devices.emulated.torch_build import TorchBuild
from tests.emulated.runs import run_pytest

pytestmark = [pytest.mark.cuda_torch, pytest.mark.slow]
PROJECT = Path(__file__).parent / "extension"


def toolkit():
    """Return the folder of a CUDA toolkit that compiles for the installed torch, or skip with what is missing."""
    missing = [name for name in ("nvcc", "ninja", "c++") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"an extension needs {' and '.join(missing)}")
    # nvcc itself knows best: what is on the path may be a script that leads to it.
    said = subprocess.run(["nvcc", "--dryrun", "none.cu"], capture_output=True, text=True, check=False).stderr
    top = re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE)
    if top is None:
        pytest.skip(f"nvcc does not say where its toolkit is: {said[:200]}")
    home = Path(top[1].strip()).resolve()
    absent = [name for name in ("include/cuda_runtime.h", "lib64/libcudart.so") if not (home / name).exists()]
    if absent:
        pytest.skip(f"the toolkit at {home} has no {' and no '.join(absent)}")
    release = re.search(r"release (\d+)\.", subprocess.check_output(["nvcc", "--version"], text=True))
    if release is None or int(release[1]) != TorchBuild.installed().cuda // 1000:
        pytest.skip("nvcc is of another CUDA than torch was built for")
    return home


@pytest.fixture
def training(tmp_path, monkeypatch):
    """The project, and what compiles its extension."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    built = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "built"), "TORCH_CUDA_ARCH_LIST": "8.6", "MAX_JOBS": "1"}
    for name, value in {**built, "CUDA_HOME": str(toolkit())}.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "check_training.py").rename(folder / "test_training.py")
    (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return folder


def test_an_extension_is_compiled_trains_and_is_counted_by_name_and_line(training):
    """Its two kernels once a step each, the gradient's at the line of its forward operator."""
    flags = ("-m", "gpu", "--perf", "--perf-device=emulated:a10", "--perf-json=readings.json")
    ran = run_pytest(training, *flags)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    written = json.loads((training / "readings.json").read_text())["benchmarks"][0]["extra_info"]["perfsuite"]
    own = {name: at for name, at in written["launched"].items() if "bias_relu" in name}
    line = "model.py forward: y = torch.ops.fused.bias_relu(x, bias)"
    assert {
        "void bias_relu_forward<float>(float const*, float const*, float*, long, long)": {line: 1},
        "void bias_relu_backward<float>(float const*, float const*, float*, long)": {line: 1},
    } == own
