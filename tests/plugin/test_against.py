"""--against=REF: both versions in turns, reasons for tests that cannot be compared, and no leftovers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfsuite.plugin import against
from perfsuite.processes import checkout

CONFTEST = """
from perfsuite.devices.scripted import ScriptedDevice
DEVICE = ScriptedDevice()
def pytest_perf_device(config, name):
    return DEVICE if name == "scripted" else None
"""
TEST = """
import pytest
from conftest import DEVICE
from subject import SECONDS
def test_it(perf):
    perf(lambda: DEVICE.spend(SECONDS), samples_per_step=10)
"""


class Repository:
    """A project under git whose only module sets how long a step takes."""

    def __init__(self, pytester, monkeypatch, tmp_path_factory):
        self.pytester, self.path = pytester, pytester.path
        self.scratch = tmp_path_factory.mktemp("scratch")
        monkeypatch.setenv("TMPDIR", str(self.scratch))
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr(against, "_LEAST_PAIRS", 2)
        pytester.makeini(
            "[pytest]\nperf_device = scripted\npythonpath = . src\naddopts = -p no:cacheprovider -ra"
        )
        pytester.makeconftest(CONFTEST)
        self.write("src/subject.py", "SECONDS = 0.01\n")
        self.write("test_it.py", TEST)
        self.git("init", "-q")
        self.commit()

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *arguments):
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        ran = subprocess.run(
            ["git", *who, *arguments], cwd=self.path, check=True, capture_output=True, text=True
        )
        return ran.stdout

    def commit(self):
        self.git("add", "-A")
        self.git("commit", "-qm", "a version")

    def run(self, *arguments, ref="HEAD"):
        return self.pytester.runpytest_inprocess(f"--against={ref}", "--against-time=1 s", *arguments)

    @property
    def left_behind(self):
        return [path.name for path in self.scratch.iterdir() if path.name.startswith("perfsuite")]


@pytest.fixture
def repository(pytester, monkeypatch, tmp_path_factory):
    return Repository(pytester, monkeypatch, tmp_path_factory)


def test_an_uncommitted_slowdown_is_a_regression_with_effect_and_interval(repository):
    """The working tree against its last commit: 10 % longer steps fail, with figures."""
    repository.write("src/subject.py", "SECONDS = 0.011\n")
    ran = repository.run()
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "slower: step time: +10.0 % time against HEAD (+* to +* %, 2 pairs of processes, p *",
            "test_it.py::test_it*10 ms*11 ms*+10.0 %*2*regression",
        ]
    )
    assert [] == repository.left_behind
    assert 1 == len(repository.git("worktree", "list").splitlines())


def test_the_same_code_and_faster_code_pass(repository):
    """No difference, then an improvement."""
    repository.run().assert_outcomes(passed=1)
    repository.write("src/subject.py", "SECONDS = 0.008\n")
    ran = repository.run()
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["test_it.py::test_it*-20.0 %*ok"])


def test_a_markers_device_holds_on_both_sides(repository):
    """Both sides get the session's device as from an ini file, so that a test's marker wins over it."""
    other = 'OTHER = ScriptedDevice(name="other")\n'
    choice = "{'scripted': DEVICE, 'other': OTHER}.get(name)"
    made = CONFTEST.replace("def pytest", f"{other}def pytest").replace(
        'DEVICE if name == "scripted" else None', choice
    )
    repository.write("conftest.py", made)
    body = "assert 'other' == perf.device_name\n    perf(lambda: OTHER.spend(SECONDS), samples_per_step=10)"
    text = TEST.replace("import DEVICE", "import OTHER").partition("    perf(")[0] + f"    {body}\n"
    repository.write(
        "test_it.py", text.replace("def test_it", "@pytest.mark.perf(device='other')\ndef test_it")
    )
    repository.commit()
    ran = repository.run()
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["test_it.py::test_it*10 ms*10 ms*ok"])


def test_what_cannot_be_compared_is_told_and_under_strict_fails(repository):
    """A new test, and one that only the ref has."""
    repository.write("test_it.py", TEST.replace("test_it", "test_renamed"))
    ran = repository.run()
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(
        [
            "not compared: test_it.py::test_renamed: it is not in HEAD: new or renamed",
            "only in HEAD, not compared: test_it.py::test_it",
        ]
    )
    assert 5 == ran.ret  # nothing was compared: not green
    repository.run("--perf-strict").assert_outcomes(failed=1)


def test_a_ref_that_does_not_import_is_an_error_that_says_what(repository):
    """The traceback's reason is shown, and no test is blamed."""
    repository.write("src/subject.py", "import nowhere\nSECONDS = 0.01\n")
    repository.commit()
    repository.write("src/subject.py", "SECONDS = 0.01\n")
    ran = repository.run()
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(
        ["*perfsuite: HEAD cannot be compared with: test_it.py does not import there:*", "*'nowhere'*"]
    )
    assert [] == repository.left_behind


@pytest.mark.parametrize("ref", ["no-such-branch", "--all"])
def test_an_unknown_ref_is_an_error_before_measuring(repository, ref):
    """git's reason and what to name instead."""
    ran = repository.run(ref=ref)
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines([f"*perfsuite: --against={ref}: *Name a commit, branch or tag*"])


def test_a_folder_without_git_is_an_error(repository):
    """There is nothing to compare with."""
    subprocess.run(["rm", "-rf", ".git"], cwd=repository.path, check=True)
    ran = repository.run()
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*--against=HEAD: *not a git repository*"])


def test_modules_that_still_come_from_the_project_are_noticed(repository):
    """A path written into a test would compare the project with itself."""
    hard = f"import sys\nsys.path.insert(0, {str(repository.path / 'src')!r})\n"
    repository.write("test_it.py", hard + TEST)
    repository.commit()
    ran = repository.run()
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines(["*HEAD would be compared with itself: subject still come from the project*"])


def test_a_test_that_fails_on_either_side_is_no_comparison(repository):
    """Broken in this version: failed with its text. Broken at the ref: reported as not compared."""
    repository.write("test_it.py", TEST + "    assert SECONDS < 0.011, 'too long'\n")
    repository.commit()
    repository.write("src/subject.py", "SECONDS = 0.012\n")
    ran = repository.run()
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*too long*"])
    repository.commit()
    repository.write("src/subject.py", "SECONDS = 0.01\n")
    ran = repository.run()
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(["not compared: test_it.py::test_it: it failed at HEAD: *"])


def test_loops_pairs_and_memory_are_compared_too(repository):
    """Samples a second of a loop, the ratio of a pair, and a peak that grew."""
    repository.write(
        "test_it.py",
        TEST + "def test_loop(perf):\n"
        "    perf.loop([[1]] * 9, lambda batch: DEVICE.spend(SECONDS), samples_per_step=4)\n"
        "def test_pair(perf):\n"
        "    perf.compare(without=lambda: DEVICE.spend(0.02), with_=lambda: DEVICE.spend(SECONDS))\n"
        "def test_memory(perf):\n"
        "    from subject import BYTES\n"
        "    DEVICE.figures['peak_memory'] = BYTES\n"
        "    perf(lambda: DEVICE.spend(0.01))\n",
    )
    repository.write("src/subject.py", "SECONDS, BYTES = 0.01, 2**20\n")
    repository.commit()
    repository.write("src/subject.py", "SECONDS, BYTES = 0.011, 2**21\n")
    ran = repository.run("--perf-family-error=5 %")  # two pairs and four tests cannot be surer
    ran.assert_outcomes(failed=4)
    ran.stdout.fnmatch_lines(
        [
            "slower: samples/s: +10.0 % time against HEAD *",
            "slower: speed-up: +10.0 % time against HEAD *",
            "peak memory 2 MiB is 100.0 % above HEAD 1 MiB *",
        ]
    )


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--save-baseline", "a baseline is measured for longer, and on this version only"),
        ("--perf-history=h.jsonl", "a history needs readings measured for as long as its others"),
    ],
)
def test_what_needs_longer_readings_is_refused_with_the_reason(repository, flag, reason):
    """A comparison's readings are short, and must not pass for full ones."""
    ran = repository.run(flag)
    assert 4 == ran.ret
    name = flag.partition("=")[0]
    ran.stderr.fnmatch_lines([f"*{name} cannot be combined with --against: {reason}; run {name} by itself"])


def test_a_history_in_the_ini_file_is_left_alone_and_that_is_said(repository):
    """The project's ini file must not make comparisons impossible."""
    ran = repository.run("-o", "perf_history=h.jsonl")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["perf_history: nothing is written by --against: a history needs *"])
    assert not (repository.path / "h.jsonl").exists()


def test_page_json_and_exports_show_the_other_version_as_the_baseline(repository):
    """The new version's figures from the turns, the old version's, and the verdict."""
    repository.write("src/subject.py", "SECONDS = 0.02\n")
    outputs = ("--perf-html=page.html", "--perf-json=run.json", "--perf-export=out", "--perf-explain")
    ran = repository.run(*outputs)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["report page: page.html", "exported to out"])
    (entry,) = json.loads((repository.path / "run.json").read_text())["benchmarks"]
    told = entry["extra_info"]["perfsuite"]
    assert (0.02, True) == (pytest.approx(told["metrics"]["step_time"]["value"]), told["failed"])
    assert "-50.0 %" == told["against_baseline"]
    page = (repository.path / "page.html").read_text()
    assert "Compared with HEAD: its figures are shown in place of a baseline" in page
    assert "step time 20 ms is 100.0 % above HEAD 10 ms" in page
    summary = (repository.path / "out" / "summary.md").read_text()
    assert summary.startswith("## Performance against HEAD")


def test_github_s_summary_tells_what_is_inconclusive(repository, monkeypatch):
    """On GitHub a comparison writes the job's summary as any other run."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(repository.path / "summary.md"))
    repository.write("src/subject.py", "SECONDS = 0.0103\n")
    ran = repository.run("--perf-tolerance=3 %")
    ran.assert_outcomes(skipped=1)
    assert "inconclusive: step time" in (repository.path / "summary.md").read_text()


def test_tests_that_measure_nothing_are_left_out(repository):
    """Only what can be compared is run."""
    repository.write("test_plain.py", "def test_plain(): assert 0")
    ran = repository.run()
    ran.assert_outcomes(passed=1, deselected=1)


def start(repository):
    """Start a long comparison in a separate process and return it with its children once there are two."""
    repository.write("src/subject.py", "SECONDS = 1e-5\n")
    command = [sys.executable, "-m", "pytest", "--against=HEAD", "--against-time=1000 h"]
    process = subprocess.Popen(
        command, cwd=repository.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        children = psutil.Process(process.pid).children(recursive=True)
        # They have read their requests and are in the middle of a test.
        if len(children) == 2 and min(child.cpu_times().user for child in children) > 0.3:
            return process, children
        time.sleep(0.05)
    process.kill()
    process.wait()
    raise AssertionError("the comparison did not start")


def gone(children, repository):
    """Wait until every process has ended and no folder is left."""
    _, alive = psutil.wait_procs(children, timeout=30)
    deadline = time.monotonic() + 10
    while repository.left_behind and time.monotonic() < deadline:
        time.sleep(0.1)
    return not alive and not repository.left_behind


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind_by_a_comparison_that_is_stopped(repository, how):
    """Ctrl-C and a kill: no process, no folder, no worktree."""
    process, children = start(repository)
    os.kill(process.pid, how)
    process.wait(timeout=30)
    assert gone(children, repository)
    assert 1 == len(repository.git("worktree", "list").splitlines())


def test_what_a_killed_run_left_is_swept_and_a_living_runs_is_not(repository):
    """Folders have the id of their process in their name."""
    dead, alive = (repository.scratch / f"perfsuite-against-{pid}-x" for pid in (2**22 + 1, os.getpid()))
    dead.mkdir()
    alive.mkdir()
    with checkout.checked_out("HEAD", repository.path) as found:
        assert [False, True] == [dead.exists(), alive.exists()]
        assert "SECONDS = 0.01\n" == (found.tree / "src" / "subject.py").read_text()
        assert found.tree / "src" == found.at_ref(repository.path / "src")
        assert Path("/") == found.at_ref(Path("/"))
    assert not found.scratch.exists()
