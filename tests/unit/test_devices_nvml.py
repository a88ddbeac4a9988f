"""NVML through the real binding on a stand-in library: the card by UUID, samples, explained absences."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "nvml" / "standin.c"
UUID = "GPU-12345678-1234-1234-1234-123456789abc"
READ = """
import json, sys, threading
from perfsuite.devices.nvml import Sampler, open_nvml
nvml = open_nvml(sys.argv[1])
sampler = Sampler(nvml, period_seconds=0.001 if int(sys.argv[2]) else 1000)
answers = threading.Event()
ask = nvml.utilization
def counted(calls=[0]):
    calls[0] += 1
    if calls[0] >= int(sys.argv[2]):
        answers.set()
    return ask()
nvml.utilization = counted
sampler.start()
if not nvml.absent and int(sys.argv[2]):
    answers.wait(20)
sampled = sampler.stop()
print(json.dumps([nvml.driver(), sampled.utilization, dict(sampled.reported), sampled.notes]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    header = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in header.submodule_search_locations] if header else []
    found = [path for folder in folders for path in folder.rglob("nvml.h")]
    if not found or not shutil.which("cc"):
        pytest.skip("needs a C compiler and NVIDIA's nvml.h (nvidia-nvml-dev)")
    folder = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{found[0].parent}"]
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", target, SOURCE], check=True)
    return folder


def read(library, script, uuid=UUID, calls=6):
    """Run the real binding in a child process that finds the stand-in where NVIDIA's library would be."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "NVML_SCRIPT": script}
    ran = subprocess.run(
        [sys.executable, "-c", READ, uuid, str(calls)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def test_a_card_is_found_by_its_uuid_and_sampled(library):
    """Mean utilization as a share, used memory as total minus free, the driver's version."""
    driver, utilization, reported, notes = read(library, f"uuid={UUID};utilization=61;total=1000;free=400")
    assert "550.163.01" == driver
    assert 0.61 == pytest.approx(utilization)
    assert 600 == reported["device_used_bytes"]
    assert reported["utilization_samples"] >= 4
    assert [] == notes


def test_a_mig_slice_is_found_where_the_gpu_is_not(library):
    """torch prints a bare number; NVML may know it as GPU or as MIG."""
    mig = UUID.replace("GPU-", "MIG-")
    assert 0.5 == pytest.approx(read(library, f"uuid={mig};utilization=50;total=1;free=1")[1])


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("uuid=GPU-other", "NVML does not know MIG-"),
        ("init=9", "Driver Not Loaded"),
        ("init=18", "mismatch"),
        (f"uuid={UUID};fail=nvmlDeviceGetUtilizationRates:3", "Not Supported"),
        (f"uuid={UUID};fail=nvmlDeviceGetUtilizationRates:4", "Insufficient Permissions"),
        (f"uuid={UUID};fail=nvmlDeviceGetUtilizationRates:15", "GPU is lost"),
    ],
)
def test_what_cannot_be_sampled_is_absent_with_its_reason(library, script, told):
    """Never 0 %: the figure is missing and the note says why."""
    _, utilization, _, notes = read(library, script)
    assert utilization is None
    assert any(note.startswith("utilization: ") and told in note for note in notes)


def test_too_few_samples_are_no_utilization(library):
    """A window that is too short fails a limit with advice instead of guessing."""
    _, utilization, reported, notes = read(library, f"uuid={UUID};utilization=99;total=1;free=1", calls=0)
    assert 0 == reported["utilization_samples"]
    assert utilization is None
    assert "--perf-min-time" in notes[0]


def test_without_the_library_the_reason_is_told():
    """A machine without NVIDIA's library has no utilization and no traceback."""
    ran = subprocess.run([sys.executable, "-c", READ, UUID, "1"], capture_output=True, text=True, check=True)
    driver, utilization, _, notes = json.loads(ran.stdout)
    assert driver is None
    assert utilization is None
    assert "utilization: NVML" in notes[0]
