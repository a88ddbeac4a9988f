"""What goes wrong on an emulated card ends in words that say what to do, and never in a crash of pytest."""

import os
import subprocess

import pytest

from perfsuite.devices.emulated import KIND, launch
from perfsuite.errors import DeviceMissing
from tests.emulated.runs import ROOT, run_pytest

DEVICE = ("--perf", "--perf-device=emulated:a10")
HEAD = "import ctypes, os, pytest, signal, torch\npytestmark = [pytest.mark.gpu, pytest.mark.perf(min_time='1 s', max_time='1 s')]\n"
FINE = """
def test_fine(perf):
    weight = torch.ones(64, device=perf.device)
    perf(lambda: weight * 2)
"""


def run(folder, text, *flags, **variables):
    """Run pytest on one file of tests."""
    (folder / "pytest.ini").touch()
    (folder / "test_it.py").write_text(HEAD + text)
    return run_pytest(folder, *(flags or DEVICE), **variables)


def assert_refused(ran, words):
    """A usage error in one line, before any test and without a traceback."""
    assert 4 == ran.returncode, ran.stdout + ran.stderr
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "INTERNALERROR" not in ran.stdout + ran.stderr


def test_a_refused_run_leaves_no_folder(tmp_path, monkeypatch):
    """No process of it will be there to remove the one its cards would have lived in."""
    monkeypatch.setattr(launch, "new_folder", lambda: tmp_path)
    monkeypatch.setattr(launch, "environment", refuse)
    with pytest.raises(DeviceMissing):
        KIND.environment("a10", None, {})
    assert not tmp_path.exists()


def refuse(*_):
    raise DeviceMissing("not here")


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            "__version__ = '2.13.0+cpu'\ncuda = None\n",
            "torch 2.13.0+cpu is a build without CUDA; install one, or count on a modelled GPU",
        ),
        (
            "__version__ = '9.9'\ncuda = '14.1'\n",
            "torch 9.9 was built for CUDA 14.1; the emulator knows CUDA 12 and 13",
        ),
        (
            "__version__ = '9.9'\ncuda = '13.0'\n",
            "torch 9.9 does not link libcudart.so as the emulator expects",
        ),
    ],
    ids=["no CUDA", "an unknown CUDA", "linked another way"],
)
def test_a_torch_it_does_not_know(version, words, tmp_path):
    """Read from its files, before anything of it is loaded."""
    torch = tmp_path / "first" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "__init__.py").write_text("raise ImportError('the emulator must not import it')")
    (torch / "version.py").write_text(version)
    paths = os.pathsep.join((str(torch.parent), str(ROOT)))
    assert_refused(run(tmp_path, FINE, PYTHONPATH=paths), words)


@pytest.mark.cuda_torch
@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        (
            "no-such-compiler",
            "is built by a C compiler, and there is none (cc, or what CC names); install one",
        ),
        ("false", "the emulated GPU was not built: "),
    ],
)
def test_no_compiler_or_one_that_fails(compiler, words, tmp_path):
    """With the remedy, and with what the compiler said."""
    assert_refused(run(tmp_path, FINE, CC=compiler, XDG_CACHE_HOME=str(tmp_path / "cache")), words)


@pytest.mark.cuda_torch
@pytest.mark.slow
def test_out_of_memory_and_a_wrong_symbol_fail_their_test_alone(tmp_path):
    """torch's own error with the card's size; the loader's with the function that nobody has; the next test runs."""
    (tmp_path / "wrong.c").write_text(
        "int cufftNoSuchPlan(void);\nint plan(void) { return cufftNoSuchPlan(); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "wrong.c", "-o", tmp_path / "wrong.so"], check=True)
    text = """
def test_too_large(perf):
    perf(lambda: torch.empty(2**36, device=perf.device))
def test_wrong_symbol(perf):
    ctypes.CDLL("./wrong.so")
"""
    ran = run(tmp_path, text + FINE)
    assert 1 == ran.returncode, ran.stdout + ran.stderr
    assert "GPU 0 has a total capacity of 22.35 GiB" in ran.stdout
    assert "undefined symbol: cufftNoSuchPlan" in ran.stdout
    assert "2 failed, 1 passed" in ran.stdout
    assert "INTERNALERROR" not in ran.stdout


@pytest.mark.cuda_torch
@pytest.mark.slow
def test_a_killed_pytest_is_cleared_away_by_the_next_run(tmp_path):
    """It could not remove its cards' folder; the next run does, and measures."""
    text = """
def test_folder(perf):
    with open("folders", "a") as file: print(os.environ["PERFSUITE_EMULATED_RUN"], file=file)
    if os.environ.get("KILL"): os.kill(os.getpid(), 9)
    perf(lambda: None)
"""
    killed = run(tmp_path, text, KILL="1")
    assert -9 == killed.returncode
    ran = run(tmp_path, text)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    left, own = (tmp_path / "folders").read_text().split()
    assert left != own
    assert [] == [folder for folder in (left, own) if os.path.exists(folder)]


@pytest.mark.cuda_torch
@pytest.mark.slow
def test_a_killed_rank_is_named(tmp_path):
    """Each rank has a card of its own; one that dies ends its test, not pytest."""
    text = """
@pytest.mark.multi_gpu(n=2)
def test_ranks(perf):
    values = torch.ones(8, device=perf.device)
    if perf.rank == 1: os.kill(os.getpid(), 9)
    signal.pause()  # until it is stopped, lest it finds the other missing before the launcher does
"""
    ran = run(tmp_path, text, "--perf", "--perf-device=emulated:2xa10")
    assert 1 == ran.returncode, ran.stdout + ran.stderr
    assert "rank 1 of 2 was killed by SIGKILL; all ranks were stopped" in ran.stdout
    assert "INTERNALERROR" not in ran.stdout
