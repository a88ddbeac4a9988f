"""pytest-xdist with --perf: one worker per GPU, on stand-in cards; runs that cannot be honest are refused."""

import json
import os
import subprocess
import sys

import pytest

from perfsuite.processes.fresh import without_workers
from perfsuite.processes.locks import lock_devices
from tests.nvml import standin
from tests.nvml.standin import UUID, script

OTHER = "GPU-aaaaaaaa-1234-1234-1234-123456789abc"
CONFTEST = """
import os
from types import SimpleNamespace
from perfsuite.devices.cuda import device as cuda
from tests.nvml.watch import ScriptClock, wait_for_end
from tests.unit.devices.cuda.test_device import RecordingTorch

SEEN_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")
torch, clocks, samplers, REAL = RecordingTorch(count=1), [], [], cuda.Sampler
torch.cuda.get_device_properties = lambda index: SimpleNamespace(
    name="NVIDIA A10", uuid=os.environ["CUDA_VISIBLE_DEVICES"].removeprefix("GPU-"), total_memory=24 * 10**9
)

def sampler(nvml, **settings):
    clock = ScriptClock(0.0)
    clock.end = clock.now() + 20.0
    clocks.append(clock)
    samplers.append(REAL(nvml, clock=clock, **settings))
    return samplers[-1]

cuda.Sampler = sampler

def pytest_perf_device(config, name):
    if name != "cuda":
        return None
    device = cuda.CudaDevice(torch, 0)
    device.now = lambda: torch.clock
    return device

def step(seconds=0.5):
    torch.clock += seconds
    if samplers:
        wait_for_end(samplers[-1], clocks[-1])
"""
TEST = """
import os
import pytest
from pathlib import Path
from conftest import SEEN_AT_IMPORT, step

@pytest.mark.parametrize("number", range(4))
def test_it(perf, number, worker_id):
    Path(f"seen-{worker_id}-{number}").write_text(f"{SEEN_AT_IMPORT} {os.environ['PERFSUITE_HELD']}")
    perf(step, samples_per_step=8)
"""


class Cards:
    """A project on a machine with two cards."""

    def __init__(self, project, library, monkeypatch):
        self.project, self.path = project, project.path
        path = self.path / "script.txt"
        path.write_text(script("at 0 processes 99:1", "at 0 utilization 87", f"card {OTHER}"))
        for name, value in standin.environment(library, path).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        project.pytester.makeini(
            "[pytest]\nperf_device = cuda\nperf_cooldown = 0\nperf_min_time = 1\nperf_confirm = 0\n"
            "addopts = -p no:cacheprovider -p no:hypothesispytest"
        )
        project.pytester.makeconftest(CONFTEST)
        self.write(TEST)

    def write(self, text):
        self.project.pytester.makepyfile(test_it=text)

    def run(self, *arguments):
        return self.project.run_apart("--perf", *arguments)


@pytest.fixture
def cards(project, library, monkeypatch):
    return Cards(project, library, monkeypatch)


def test_each_worker_has_a_card_of_its_own_and_holds_it(cards):
    """Before any conftest is loaded; table and JSON hold the readings of both."""
    ran = cards.run("-n", "2", "--perf-json=out.json")
    ran.assert_outcomes(passed=4)
    seen = {path.name.split("-")[1]: path.read_text().split() for path in cards.path.glob("seen-*")}
    assert {"gw0": UUID, "gw1": OTHER} == {worker: card for worker, (card, *_) in seen.items()}
    held = {worker: [*json.loads("".join(rest))] for worker, (_, *rest) in seen.items()}
    assert {"gw0": [UUID], "gw1": [OTHER]} == held
    rows = [row for number in range(4) for row in (f"test_it.py::test_it?{number}?", "*87.0 %*no limit")]
    ran.stdout.fnmatch_lines([f"perfsuite: one worker per GPU: {UUID}, {OTHER}", *rows])
    document = json.loads((cards.path / "out.json").read_text())
    taken = [entry["extra_info"]["perfsuite"]["device"] for entry in document["benchmarks"]]
    assert {"cuda:0", "cuda:1"} == set(taken)
    assert 4 == len(taken)


def test_a_missed_limit_fails_the_run(cards):
    """Judged in the worker that measured it, reported by the controller."""
    cards.write(TEST.replace("def test_it", "@pytest.mark.perf(max_step_time='100 ms')\ndef test_it"))
    ran = cards.run("-n", "2")
    ran.assert_outcomes(failed=4)
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(
        ["step time 500 ms is above the 100 ms expected by the perf marker *", "*500 ms*failed"]
    )


def test_a_run_that_measures_nothing_is_not_green(cards):
    """Even though only the workers could know."""
    cards.write("def test_it(): pass\ndef test_other(): pass\n")
    ran = cards.run("-n", "2")
    assert 5 == ran.ret
    ran.stdout.fnmatch_lines(["nothing was measured: *"])


def test_a_baseline_holds_for_every_worker(cards, monkeypatch):
    """Stored without workers, compared with workers; a suspicion is measured again right away."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUID)
    cards.run("--save-baseline", "--perf-sessions=1").assert_outcomes(passed=4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    slower = TEST.replace("perf(step,", "perf((lambda: step(0.7)) if number == 2 else step,")
    cards.write(slower)
    ran = cards.run("-n", "2", "--perf-confirm=1", "--perf-strict")
    ran.assert_outcomes(passed=3, failed=1)
    ran.stdout.fnmatch_lines(["*measured again: +40.0 % in 1 fresh processes*"])
    cards.write(slower.replace("range(4)", "(0, 1)"))
    ran = cards.run("-n", "2", "--perf-strict")
    ran.assert_outcomes(passed=2)
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["stored, but there is no such test: test_it.py::test_it?3?*"])


def test_a_card_in_use_ends_the_run_of_all_workers(cards):
    """Wrong use, not a crashed worker."""
    held = lock_devices([OTHER], timeout=0, command="another run", say=print, environment=dict(os.environ))
    ran = cards.run("-n", "2", "--perf-lock-timeout=0")
    held.release()
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(
        [f"ERROR: perfsuite: {OTHER} is in use by another performance run: *(another run)*"]
    )


def test_a_test_on_a_device_that_workers_share_fails_and_says_so(cards):
    """Its marker requests the CPU, which no worker has for itself."""
    cards.write("import pytest\n@pytest.mark.perf(device='cpu')\ndef test_it(perf): perf(int)\n")
    ran = cards.run("-n", "2")
    ran.assert_outcomes(errors=1)
    ran.stdout.fnmatch_lines(["cpu is not this worker's device; measure this test with -n 0"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-n", "3"], "3 workers, but 2 GPUs are visible, and *; use -n 2"),
        (
            ["-n", "2", "--perf-device=cpu"],
            "*one device (cpu) disturb each other; run --perf without *(-n 0)",
        ),
        (["-n", "2", "--perf-device=cuda:0"], "*one device (cuda:0) disturb each other; *(-n 0)"),
        (["-n", "2", "--perf-device=model:a10"], "*one device (model:a10) disturb each other; *(-n 0)"),
        (["-n", "2", "--save-baseline"], "--save-baseline measures in fresh processes, *(-n 0)"),
        (["-n", "2", "--against=HEAD"], "--against measures in fresh processes, *(-n 0)"),
        (["-n", "2", "--dist=each"], "its workers must share the GPUs *(-n 0)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_honest_is_refused(cards, arguments, told):
    """Before any worker starts, with the remedy."""
    ran = cards.run(*arguments)
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines([f"ERROR: perfsuite: {told}"])


def test_a_single_card_takes_no_workers(cards, monkeypatch):
    """The variable restricts which cards are assigned."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", OTHER)
    ran = cards.run("-n", "2")
    ran.stderr.fnmatch_lines(["ERROR: perfsuite: 2 workers, but 1 GPU is visible, *; use -n 0"])


SHARE = (
    "import os, json, perfsuite.devices.cuda.identity as p; print(json.dumps(p.cards_to_share(os.environ)))"
)


@pytest.mark.parametrize(
    ("visible", "order", "expected"),
    [
        (None, "", [UUID, OTHER]),
        ("GPU-aaaa,GPU-1234", "", [OTHER, UUID]),
        ("GPU-aaaa,GPU-ffff,GPU-1234", "", [OTHER]),
        ("MIG-x,MIG-y", "", ["MIG-x", "MIG-y"]),
        ("1,0", "PCI_BUS_ID", [OTHER, UUID]),
        ("1,5", "PCI_BUS_ID", [OTHER]),
        ("1,0", "", ["1", "0"]),
    ],
)
def test_which_cards_are_shared_out(library, tmp_path, visible, order, expected):
    """By UUID; CUDA's numbers are passed on if only CUDA knows what they mean."""
    (tmp_path / "script.txt").write_text(script(f"card {OTHER}"))
    environment = standin.environment(library, tmp_path / "script.txt") | {"CUDA_DEVICE_ORDER": order}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    ran = subprocess.run(
        [sys.executable, "-c", SHARE], env=environment, capture_output=True, text=True, check=True
    )
    assert expected == json.loads(ran.stdout)


@pytest.mark.parametrize(
    "given",
    [["-n", "2"], ["-n2"], ["-nauto"], ["--numprocesses=2"], ["--dist", "load", "--tx=2*popen"], ["-d"]],
)
def test_words_about_workers_are_not_repeated(given):
    """A command that is shown, or started again, has none."""
    assert ["tests", "-k", "not slow"] == without_workers(["tests", *given, "-k", "not slow"])
