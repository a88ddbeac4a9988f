"""The CPU as a device: real clock, real memory, and no figure where the system does not report one."""

import subprocess
import sys
from pathlib import Path

import pytest

from perfsuite import host
from perfsuite.devices import cpu
from perfsuite.devices.open import open_device
from perfsuite.errors import DeviceMissing
from perfsuite.host import cpu_name

LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
MIB = 2**20


def test_steps_and_wall_time_add_up():
    """The marks divide the window without loss."""
    window = cpu.CpuDevice().start()
    for _ in range(5):
        sum(range(1000))
        window.mark()
    timing = window.stop()
    assert 5 == len(timing.step_seconds)
    assert 0 < sum(timing.step_seconds) <= timing.wall_seconds


def test_utilization_is_a_share_of_all_threads():
    """A busy single thread uses its share of the cores, never more than the whole."""
    window = cpu.CpuDevice().start()
    sum(range(3_000_000))
    window.mark()
    assert 0 < window.stop().figures["utilization"] <= 1


PEAKS = """
from perfsuite.devices.cpu import CpuDevice
device = CpuDevice()
def peak(size):
    device.begin_test()
    window = device.start()
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    del block
    window.mark()
    return window.stop().figures["peak_memory"]
print(peak(200 * 2**20), peak(10 * 2**20))
"""


@LINUX
def test_peak_memory_is_reset_between_tests():
    """A large peak shows in its test and not in the next one."""
    # In a fresh process: from a large one the system may reclaim pages during the test.
    ran = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    large, small = (float(peak) for peak in ran.stdout.split())
    assert 190 * MIB < large < 230 * MIB
    assert 9 * MIB < small < 40 * MIB


def test_without_proc_memory_is_absent_and_says_why(monkeypatch):
    """On macOS and Windows the figure is missing, and nothing crashes."""
    nowhere = Path("/nonexistent")
    for module, name in ((cpu, "_STATUS"), (cpu, "_CLEAR_REFS"), (host, "_SCHEDSTAT")):
        monkeypatch.setattr(module, name, nowhere)
    device = cpu.CpuDevice()
    device.begin_test()
    window = device.start()
    window.mark()
    timing = window.stop()
    assert "peak_memory" not in timing.figures
    assert ("peak_memory: needs Linux's /proc",) == timing.notes
    assert "utilization" in timing.figures


def test_a_crowded_machine_is_noted(monkeypatch):
    """Time spent ready to run but without a core is noted with the figure."""
    waits = iter([0.0, 1000.0])
    monkeypatch.setattr(cpu, "queued_seconds", lambda: next(waits))
    window = cpu.CpuDevice().start()
    window.mark()
    assert any("other processes kept this one" in note for note in window.stop().notes)


def test_the_processor_has_a_name():
    """Trademark signs and clock speeds are not part of it."""
    assert cpu_name()
    assert "(R)" not in cpu_name()


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "cuda:-1", ""])
def test_unknown_devices_are_refused_with_the_known_ones(name):
    """A typo does not mean «auto»."""
    with pytest.raises(DeviceMissing, match="known: auto, cpu, cuda, cuda:N"):
        open_device(name)
