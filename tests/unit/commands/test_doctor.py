"""python -m perfsuite doctor: without library, without driver, and on the stand-in."""

import os
import subprocess
import sys

import pytest

from perfsuite.commands import doctor as subject
from tests.nvml import standin
from tests.nvml.standin import UUID, script


def doctor(environment):
    ran = subprocess.run(
        [sys.executable, "-m", "perfsuite", "doctor"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        cwd=standin.ROOT,
    )
    assert "" == (ran.stdout if ran.returncode else ran.stderr)
    return ran.returncode, (ran.stdout + ran.stderr).splitlines()


@pytest.fixture
def on(library, tmp_path):
    """Run the doctor on a script."""

    def on(text, **more):
        path = tmp_path / "script.txt"
        path.write_text(text)
        return doctor({**standin.environment(library, path), **more})

    return on


def test_a_machine_without_the_library_is_told_in_one_line():
    """No library, no GPU, no traceback."""
    code, lines = doctor({k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"})
    if code == 0:
        pytest.skip("this machine has a GPU")
    (line,) = lines
    assert line.startswith("perfsuite: no GPU can be measured here: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (script("fail nvmlInitWithFlags 9"), "the NVIDIA driver is not loaded"),
        (script("fail nvmlInitWithFlags 12"), "there is no NVIDIA library"),
        (script("fail nvmlInitWithFlags 18"), "changed without a reboot"),
        (script(card=None), "NVML sees no card"),
        (script("fail nvmlDeviceGetCount_v2 999"), "NVML sees no card"),
    ],
)
def test_a_library_without_a_usable_driver_is_told_in_one_line(on, text, told):
    """Each failure has its message."""
    code, (line,) = on(text)
    assert 1 == code
    assert told in line


def test_a_card_and_all_that_can_be_measured_on_it(on):
    """Device, driver, abilities."""
    text = script("at 0 utilization 50", "at 0 gpm 1", "at 0 processes 1:1", speed=1000)
    code, lines = on(text, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert 0 == code
    assert "driver 550.163.01, NVML 12.550.163.01" in lines[1]
    assert "CUDA sees 0; CUDA numbers them by PCI_BUS_ID" in lines[2]
    assert f"NVIDIA Stand-in ({UUID})" == lines[4]
    told = {line[2:24].strip(): line[24:] for line in lines[5:]}
    assert {
        "utilization": "yes, from the driver's samples (120 in its buffer)",
        "SM, tensor, DRAM": "yes (GPM)",
        "memory": "yes, 18.6 GiB of 22.4 GiB free, 477 MiB reserved by the driver",
        "throttling": "yes, counted by the driver (power_brake, power_cap, thermal)",
        "clocks": "yes, SM at 1695 MHz of 1695 MHz",
        "power": "limit 150 W, energy counted",
        "other processes": "yes, 1 on the card now",
        "persistence mode": "on",
        "MIG": "off",
    } == told


def test_an_idle_card_is_no_card_without_samples(on):
    """An empty buffer is reported as such."""
    _, lines = on(script("at 0 utilization 0"))
    assert "yes, 0 % now (its sample buffer is empty, as on an idle card)" == lines[5][24:]


def test_a_card_that_tells_nothing_says_no_everywhere(on):
    """Every ability can be reported as missing."""
    functions = """nvmlDeviceGetSamples nvmlDeviceGetUtilizationRates nvmlGpmQueryDeviceSupport
        nvmlDeviceGetMemoryInfo nvmlDeviceGetMemoryInfo_v2 nvmlDeviceGetFieldValues nvmlDeviceGetClockInfo
        nvmlDeviceGetCurrentClocksEventReasons nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetMigMode
        nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetComputeRunningProcesses_v3
        nvmlDeviceGetPersistenceMode nvmlDeviceGetName"""
    code, lines = on(script(*(f"fail {name} 3" for name in functions.split())))
    assert 0 == code
    assert f"unknown ({UUID})" == lines[4]
    words = [line[24:].split(":")[0].split(",")[0] for line in lines[5:]]
    assert ["no", "no", "no", "no", "no", "limit unknown", "no", "unknown", "none"] == words


def test_cards_that_only_torch_knows_are_told_with_what_is_missing(monkeypatch):
    """A build for ROCm measures on them, without NVIDIA's library."""
    monkeypatch.setattr(subject, "load_binding", lambda: (None, "there is no NVIDIA library"))
    monkeypatch.setattr(subject, "available_count", lambda: 2)
    monkeypatch.setattr(subject, "torch_text", lambda: "torch 2.13 for ROCm 6.2, sees 2 of the cards")
    first, second = subject.diagnose()
    assert first.endswith("torch 2.13 for ROCm 6.2, sees 2 of the cards")
    assert (
        "utilization, clocks, power and other processes cannot be measured: there is no NVIDIA library"
        == second
    )
