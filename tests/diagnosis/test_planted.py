"""Ten trainings with one planted cause each: the diagnosis names the planted one, on the CPU and modelled."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLANTED = Path(__file__).with_name("planted.py")
# A card whose memory one of the trainings fills.
SMALL_CARD = """
[small]
title = "small card"
float32 = 31.2e12
bandwidth = 600e9
sms = 72
memory_bytes = 108e6
source = "made up for a test"
"""
CAUSES = {
    "slow_dataset": "data-bound: slow samples",
    "zero_workers": "data-bound: no workers",
    "forty_workers": "40 loader workers share ",
    "pageable_copies": "transfer-bound: copies from pageable memory",
    "item_every_step": "sync-bound|host syncs",
    "loop_over_detectors": "launch-bound: the same .* is called 200 times",
    "batch_of_two": "under-filled: 2 samples",
    "restarted_workers": "the loader's workers are started again every 8 steps",
    "memory_nearly_full": "memory-tight",
    "nothing_wrong": "compute-bound",
}
# A CPU has no bus to cross, no device to wait for and, here, no memory to fill without harm.
NOT_ON_CPU = ("pageable_copies", "item_every_step", "memory_nearly_full")


def diagnoses(folder, device, only=""):
    """Measure the planted trainings in one process; return test → its explanation."""
    (folder / "test_planted.py").write_text(PLANTED.read_text())
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "perfsuite-gpus.toml").write_text(SMALL_CARD)
    left_out = f"not ({' or '.join(NOT_ON_CPU)})" if device == "cpu" else ""
    arguments = ["--perf", "--perf-explain", f"--perf-device={device}", "-k", only or left_out]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "--perf-min-time=0.2s", "--perf-max-time=1s"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    parts = re.split(r"^test_planted\.py::test_(\w+)\n(?=  where)", ran.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Measure on a machine that others use too: what was misled once must be right the next two times."""
    found = diagnoses(tmp_path_factory.mktemp("cpu"), "cpu")
    misled = [name for name, text in found.items() if not is_named(name, text)]
    if not misled:
        return found
    again = [diagnoses(tmp_path_factory.mktemp("again"), "cpu", " or ".join(misled)) for _ in range(2)]
    for name in misled:
        texts = [texts[name] for texts in again]
        found[name] = next((text for text in texts if not is_named(name, text)), texts[0])
    return found


@pytest.fixture(scope="module")
def modelled(tmp_path_factory):
    return diagnoses(tmp_path_factory.mktemp("model"), "model:small")


def is_named(planted, text):
    return re.match(CAUSES[planted], likely(text)) is not None


def likely(text):
    return re.search(r"likely cause: (.*)", text)[1]


@pytest.mark.slow
@pytest.mark.parametrize("planted", [name for name in CAUSES if name not in NOT_ON_CPU])
def test_the_planted_cause_is_named_on_the_cpu(on_cpu, planted):
    """The likely cause is the planted one."""
    assert is_named(planted, on_cpu[planted]), on_cpu[planted]


@pytest.mark.slow
@pytest.mark.parametrize("planted", CAUSES)
def test_the_planted_cause_is_named_on_a_modelled_card(modelled, planted):
    """The same trainings on another device."""
    assert is_named(planted, modelled[planted]), modelled[planted]
    assert "would go (predicted)" in modelled[planted]


@pytest.mark.slow
def test_the_line_behind_the_cause_is_named(modelled, on_cpu):
    """A loop, a sync and a copy are named with file, line and text."""
    for text in (on_cpu["loop_over_detectors"], modelled["loop_over_detectors"]):
        assert re.search(r"test_planted\.py:\d+ in .*torch\.tanh\(layer\(state\)\)", text)
    assert re.search(r"test_planted\.py:\d+ in step: return loss\.item\(\)", modelled["item_every_step"])
    assert re.search(r"test_planted\.py:\d+ in step: layer\(batch\.to", modelled["pageable_copies"])


@pytest.mark.slow
def test_waiting_for_data_is_proven_by_a_rerun_on_one_batch(on_cpu, modelled):
    """A share of waiting is a suspicion; the rerun is the proof, and a predicted one says so."""
    assert re.search(r"on one resident batch .* \(proven by a rerun\)", on_cpu["zero_workers"])
    assert re.search(r"on one resident batch .* \(predicted by a rerun\)", modelled["zero_workers"])
