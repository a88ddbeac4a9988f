"""The plugin on emulated cards: what pytest says, what it refuses, ranks, and two runs at once."""

import json
import os
import subprocess
import sys

import pytest

from tests.emulated.runs import ROOT, emulate
from tests.emulated.runs import run_pytest as run

pytestmark = [pytest.mark.cuda_torch, pytest.mark.slow]

STEP = """
import pytest, torch
{more}
@pytest.mark.gpu
@pytest.mark.perf(max_time="1 s", min_time="1 s")
def test_step(perf):
    weight = torch.ones(64, 64, device=perf.device, requires_grad=True)
    {body}
"""
PLAIN = "perf(lambda: (weight @ weight).sum().backward())"


@pytest.fixture
def project(tmp_path):
    """A folder with one test; returns what runs pytest there."""

    def make(body=PLAIN, more=""):
        (tmp_path / "pytest.ini").touch()
        (tmp_path / "test_it.py").write_text(STEP.format(body=body, more=more))
        return tmp_path

    return make


def test_an_emulated_process_never_calls_its_card_cuda(project):
    """`auto` is the emulated card, and asking for cuda is refused: no figure may pass for a measured one."""
    folder = project()
    ran = emulate(*(sys.executable, "-m", "pytest", "-p", "no:logging", "--perf"), cwd=folder)
    assert 0 == ran.returncode, ran.stdout
    assert "perfsuite: emulated:a10 (NVIDIA A10 emulated)" in ran.stdout
    for asked, words in (
        ("cuda", "the cards this process sees are emulated"),
        ("emulated:t4", "started on emulated:a10"),
    ):
        ran = emulate(*(sys.executable, "-m", "pytest", "--perf", f"--perf-device={asked}"), cwd=folder)
        assert 4 == ran.returncode
        assert words in ran.stderr


@pytest.mark.parametrize("use", ["in the step", "around the test"])
def test_a_profiler_of_the_users_costs_the_inspection_alone(project, use):
    """The process lives, the reading is there with its counts, a note says why shares are missing."""
    fixture, step = {
        "in the step": ("", "with profile(): (weight @ weight).sum().backward()"),
        "around the test": (
            "@pytest.fixture(autouse=True)\ndef profiled():\n    with profile(): yield",
            "(weight @ weight).sum().backward()",
        ),
    }[use]
    body = f"def step():\n        {step}\n    perf(step)"
    folder = project(body, f"from torch.profiler import profile\n{fixture}\n")
    ran = run(folder, "--perf", "--perf-device=emulated:a10", "--perf-json=readings.json")
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    word = {"in the step": "the step uses a profiler itself", "around the test": "active around the test"}[
        use
    ]
    assert "inspection: left out, " in ran.stdout
    assert word in ran.stdout
    found = json.loads((folder / "readings.json").read_text())["benchmarks"][0]["extra_info"]["perfsuite"]
    assert found["metrics"]["kernels"]["value"] > 0
    assert found["metrics"]["kernel_busy"]["value"] is None


def test_results_are_not_comparable(project):
    """A comparison of results neither passes nor fails by them, and says so."""
    body = "assert not perf.has_values; perf.compare(without=lambda: weight.sum(), with_=lambda: weight.sum() + 1, result=lambda x: x)"
    ran = run(project(body), "--perf", "--perf-device=emulated:a10")
    assert 0 == ran.returncode, ran.stdout
    assert "not comparable here, the device computes no values" in ran.stdout


def test_what_was_refused_is_listed_at_the_end(project):
    """A test that needs cuFFT fails with torch's error, and the function is named after the table."""
    ran = run(project("perf(lambda: torch.fft.fft(weight))"), "--perf", "--perf-device=emulated:a10")
    assert 1 == ran.returncode
    assert "cuFFT error" in ran.stdout
    assert "the emulated GPU does not have, and refused: cufft" in ran.stdout


def test_a_conftest_may_import_torch(project):
    """It is read by the second pytest alone, which has the libraries."""
    folder = project()
    (folder / "conftest.py").write_text("import torch\nassert torch.cuda.is_available()\n")
    ran = run(folder, "--perf", "--perf-device=emulated:a10")
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert 1 == ran.stdout.count("test session starts")


def test_pytest_called_from_python_is_not_started_anew(project):
    """That would run the caller's program twice."""
    code = "import sys, pytest; sys.exit(pytest.main(['--perf', '--perf-device=emulated:a10']))"
    given = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=project(), env=given, capture_output=True, text=True, check=False
    )
    assert 4 == ran.returncode
    assert "python -m perfsuite emulate CARD" in ran.stderr


# Every hundredth batch is longer than all before it, so that pools grow in every window.
LONGER = """lengths = iter(range(10**6))
    def step():
        n = next(lengths)
        rows = 64 * (1 + n % 7) + 4096 * (n // 100)
        torch.ones(rows, 64, device=perf.device).matmul(weight).sum().backward()
    reading = perf(step)
    assert not reading.invalid, reading.invalid
    assert reading.reported["device_allocations"] > 0
    assert any("requested memory from the driver" in note for note in reading.notes)"""


def test_batches_of_different_lengths_are_measurable(project):
    """The allocator asks for more memory now and then: a note, not an invalid measurement."""
    ran = run(project(LONGER), "--perf", "--perf-device=emulated:a10")
    assert 0 == ran.returncode, ran.stdout


# A kernel that the model takes for some 35 ms, launched in microseconds.
LARGE = """large = torch.empty(8192, 8192, device=perf.device)
    reading = perf(lambda: large @ large)
    assert 1 < reading.steps < 100, reading.steps"""


def test_the_longest_time_is_the_cards_and_not_the_hosts(project):
    """The host could launch a thousand kernels ahead within the second that the window may take."""
    ran = run(project(LARGE), "--perf", "--perf-device=emulated:a10")
    assert 0 == ran.returncode, ran.stdout


def test_two_runs_at_once_do_not_meet(project):
    """Cards of their own, no waiting for each other's locks."""
    folder = project()
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:logging",
        "-p",
        "no:cacheprovider",
        "--perf",
        "--perf-device=emulated:a10",
    ]
    runs = [
        subprocess.Popen(
            command, cwd=folder, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    told = [run.communicate()[0] for run in runs]
    assert [0, 0] == [run.returncode for run in runs], told
    assert not any("waiting for" in text for text in told)


def test_ranks_have_a_card_each(tmp_path):
    """A multi_gpu test on two emulated cards: two processes, gloo, and figures that say «emulated»."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_ranks.py").write_text("""
import pytest, torch
from torch import nn
@pytest.mark.multi_gpu(n=2)
@pytest.mark.perf(min_time="1 s", max_time="1 s")
def test_ddp(perf):
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(perf.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1); batch = torch.randn(32, 64, device=perf.device)
    def step():
        optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
    perf(step, samples_per_step=32)
""")
    ran = run(tmp_path, "--perf", "--perf-device=emulated:2xa10")
    assert 0 == ran.returncode, ran.stdout
    assert "test_ddp on 2 ranks" in ran.stdout
    assert " emulated " in ran.stdout


TWO_TESTS = """
import pytest, torch
kept = []
pytestmark = [pytest.mark.gpu, pytest.mark.perf(max_time="1 s", min_time="1 s")]
def test_products(perf):
    weight = torch.ones(256, 256, device=perf.device, requires_grad=True)
    kept.append(weight)  # left behind for whoever comes next
    perf(lambda: (weight @ weight).sum().backward())
def test_sums(perf):
    values = torch.ones(1000, device=perf.device)
    kept.append(values)
    perf(lambda: values * 2)
"""


def test_a_test_s_memory_does_not_depend_on_what_ran_before(tmp_path):
    """In both orders the same bytes: neither leftovers nor cuBLAS's workspaces are a test's own."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_two.py").write_text(TWO_TESTS)
    names, peaks = ["test_two.py::test_products", "test_two.py::test_sums"], []
    for order in (names, names[::-1]):
        ran = run(tmp_path, "--perf", "--perf-device=emulated:a10", "--perf-json=run.json", *order)
        assert 0 == ran.returncode, ran.stdout
        tests = json.loads((tmp_path / "run.json").read_text())["benchmarks"]
        found = {test["fullname"]: test["extra_info"]["perfsuite"]["metrics"] for test in tests}
        peaks.append([found[name]["peak_memory"]["value"] for name in names])
    assert peaks[0] == peaks[1]
    # The weight, its gradient and the product of the step; cuBLAS's 17 MB are not among them.
    product, sums = peaks[0]
    assert 3 * 4 * 256**2 <= product < 2 * 3 * 4 * 256**2
    assert 4096 == sums - 4096


TF32 = """
    def product(tf32):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return matrix @ matrix
    matrix = torch.ones(2048, 2048, device=perf.device)
    fast = perf.compare(without=lambda: product(False), with_=lambda: product(True))
    # One large product and nothing else: the prediction is off as products are, and not as hosts (30 %).
    assert 0.05 < fast.without.reported["predicted_step_error"] < 0.12
    slow, fast = (one.reported["predicted_step_seconds"] for one in (fast.without, fast))
    assert slow > 1.5 * fast
"""


def test_variants_whose_kernels_have_one_name_are_predicted_each_for_itself(project):
    """A product through TF32 units is the same launch; this machine's load changes neither prediction."""
    ran = run(project(body=TF32.strip()), "--perf", "--perf-device=emulated:a10")
    assert 0 == ran.returncode, ran.stdout
