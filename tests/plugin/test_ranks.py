"""Tests that several processes measure together: started by pytest itself, and by torchrun."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.slow

TRAINING = """
    import os
    import time
    import pytest
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    def training(ranks, seconds=0.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model = DistributedDataParallel(model) if ranks > 1 else model
        batch = torch.randn(32, 64)

        def step():
            model.zero_grad()
            model(batch).square().mean().backward()
            if seconds:
                time.sleep(seconds)

        return step
"""
FAST = ("--perf", "--perf-min-time=0.1 s", "--perf-max-time=0.5 s", "--perf-confirm=0")


@pytest.fixture
def project(pytester):
    """Write tests below the training."""

    def write(*tests):
        import textwrap

        pytester.makepyfile("\n\n".join(textwrap.dedent(text) for text in (TRAINING, *tests)))
        return pytester

    return write


STEP = """
    @pytest.mark.multi_gpu({ranks})
    @pytest.mark.perf({limits})
    def test_step(perf):
        assert {ranks} == perf.world_size == torch.distributed.get_world_size()
        perf(training(perf.world_size), samples_per_step=32)
"""


def torchrun(pytester, *arguments, ranks=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return pytester.run(*command, "-m", "pytest", "-p", "no:cacheprovider", *arguments, timeout=120)


def read(path):
    return [entry["extra_info"]["perfsuite"] for entry in json.loads(path.read_text())["benchmarks"]]


def test_a_plain_run_starts_the_ranks_itself(project):
    """One test, two gloo ranks, one reading with the figures of both."""
    pytester = project(STEP.format(ranks=2, limits='max_rank_skew="99 %"'))
    ran = pytester.runpytest_subprocess(*FAST, "--perf-json=out.json")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["*::test_step on 2 ranks: skew *; collectives * a step, * of it hidden", "*rank 1 *"]
    )
    (told,) = read(pytester.path / "out.json")
    assert ("cpu×2", 2) == (told["device"], len(told["ranks"]))
    assert told["metrics"]["samples_per_s"]["value"] > 0
    for figures in told["ranks"]:
        assert {"own_seconds", "utilization", "peak_memory_bytes", "collective_seconds"} <= set(figures)


def test_four_ranks_on_any_machine(project):
    """More ranks than cores is slow, not wrong."""
    ran = project(STEP.format(ranks=4, limits="")).runpytest_subprocess(*FAST)
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["*on 4 ranks*", "*rank 3*"])


def test_scaling_is_measured_in_turns_and_limited(project):
    """Two ranks that wait, while a single one does not, are not twice as fast."""
    pytester = project(
        """
        @pytest.mark.multi_gpu(2)
        def test_scaling(perf):
            def build(world):
                return training(world.size, seconds=0.05 if world.size > 1 else 0.0)

            found = perf.scaling(build, samples_per_step=32, min_scaling_efficiency="90 %")
            assert found.scaling_efficiency_low <= found.scaling_efficiency <= found.scaling_efficiency_high
        """
    )
    ran = pytester.runpytest_subprocess(*FAST)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["scaling efficiency * is below the 90.0 % expected by the perf call*"])


def test_a_slow_rank_is_named(project):
    """By its number, and the limit on the skew is missed."""
    pytester = project(
        """
        @pytest.mark.multi_gpu(2)
        @pytest.mark.perf(max_rank_skew="30 %")
        def test_step(perf):
            perf(training(2, seconds=0.05 if perf.rank == 1 else 0.0))
        """
    )
    ran = pytester.runpytest_subprocess(*FAST)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["rank skew * is above the 30.0 % *", "*likely cause: straggler: rank 1 of 2*"])


def test_a_rank_that_fails_shows_its_traceback(project):
    """Even while the other rank waits forever in a collective."""
    pytester = project(
        """
        @pytest.mark.multi_gpu(2)
        def test_step(perf):
            step = training(2)
            if perf.rank == 1:
                raise ValueError("planted")
            step()
        """
    )
    ran = pytester.runpytest_subprocess(*FAST)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["rank 1 failed:", "*ValueError: planted"])
    ran.stdout.no_fnmatch_line("*During handling*")


def test_a_fixture_that_fails_on_one_rank_fails_the_test(project):
    """The other ranks do not start without it."""
    pytester = project(
        """
        @pytest.fixture
        def broken(perf):
            if perf.rank == 1:
                raise ValueError("no data here")

        @pytest.mark.multi_gpu(2)
        def test_step(perf, broken):
            perf(training(2))
        """
    )
    ran = pytester.runpytest_subprocess(*FAST)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["rank 1 failed:", "*ValueError: no data here"])


def test_a_killed_rank_ends_all_and_changes_nothing(project, tmp_path):
    """Signal 9 in the middle of a test: red, no process left, the stored baseline unchanged."""
    pytester = project(
        """
        @pytest.mark.multi_gpu(2)
        def test_step(perf):
            with open(os.environ["PIDS"], "a") as file:
                file.write(f"{os.getpid()}\\n")
            if perf.rank == 1 and os.environ.get("KILL"):
                os.kill(os.getpid(), 9)
            perf(training(2))
        """
    )
    pids = tmp_path / "pids"
    os.environ["PIDS"] = str(pids)
    try:
        stored = pytester.runpytest_subprocess(*FAST, "--save-baseline", "--perf-sessions=1")
        stored.assert_outcomes(passed=1)
        (baseline,) = (pytester.path / "baselines").rglob("*.json")
        assert "2-ranks" in str(baseline)
        before = baseline.read_bytes()
        os.environ["KILL"] = "1"
        ran = pytester.runpytest_subprocess(*FAST, "--save-baseline", "--perf-sessions=1")
    finally:
        os.environ.pop("KILL", None)
        os.environ.pop("PIDS", None)
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(["*rank 1 of 2 was killed by SIGKILL; all ranks were stopped*"])
    assert before == baseline.read_bytes()
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rank_that_stands_still_is_given_up(project, tmp_path):
    """Stopped, not dead: no exit status reveals it, only the timeout."""
    pytester = project(
        f"""
        @pytest.mark.multi_gpu(2)
        def test_step(perf):
            step = training(2)
            if perf.rank == 1:
                open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
                os.kill(os.getpid(), 19)
            perf(step)
        """
    )
    ran = pytester.runpytest_subprocess(*FAST, "--perf-rank-timeout=5 s")
    ran.assert_outcomes(failed=1)
    ran.stdout.re_match_lines([".*rank 1 (has sent no heartbeat for|did not respond within) 5 s"])
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_ranks_die_with_the_run_that_started_them(project, tmp_path):
    """A killed pytest leaves no rank behind."""
    pytester = project(
        """
        @pytest.mark.multi_gpu(2)
        def test_step(perf):
            with open(os.environ["PIDS"], "a") as file:
                file.write(f"{os.getpid()}\\n")
            torch.distributed.barrier()
            with open(os.environ["READY"], "w") as ready:
                ready.write("x")
            time.sleep(300)
        """
    )
    pids, ready = tmp_path / "pids", tmp_path / "ready"
    os.mkfifo(ready)
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *FAST],
        cwd=pytester.path,
        env={**os.environ, "PIDS": str(pids), "READY": str(ready)},
        stdout=subprocess.DEVNULL,
    )
    ready.read_text()  # both are in the middle of the test
    process.send_signal(signal.SIGKILL)
    process.wait()
    ranks = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert [] == alive


def test_torchrun_reports_once_and_all_ranks_leave_alike(project):
    """The first rank reports; a missed limit sets the exit status of all ranks."""
    pytester = project(
        STEP.format(ranks=2, limits="min_samples_per_s=1"), "def test_alone(perf):\n    perf(training(1))"
    )
    ran = torchrun(pytester, *FAST, "-rs")
    assert 0 == ran.ret
    assert 1 == str(ran.stdout).count("1 passed, 1 skipped")
    ran.stdout.fnmatch_lines(["*measured by one process; run it without torchrun*"])
    pytester = project(STEP.format(ranks=2, limits="min_samples_per_s=1e12"))
    ran = torchrun(pytester, *FAST)
    assert 0 != ran.ret
    assert 2 == str(ran.stderr).count("exitcode  : 1 ")


def test_torchrun_with_too_few_ranks_says_so(project):
    """And a run that measures nothing is not green."""
    ran = torchrun(project(STEP.format(ranks=4, limits="")), *FAST, "-rs")
    assert 0 != ran.ret
    ran.stdout.fnmatch_lines(["*needs 4 ranks, torchrun started 2*"])


def test_ranks_that_would_run_other_tests_are_refused(project):
    """One of them would wait forever."""
    pytester = project(
        """
        @pytest.mark.multi_gpu(2)
        @pytest.mark.parametrize("size", range(1 + int(os.environ["RANK"])))
        def test_step(perf, size):
            perf(training(2))
        """
    )
    ran = torchrun(pytester, *FAST)
    assert 0 != ran.ret
    ran.stderr.fnmatch_lines(["*rank 1 would run other tests than rank 0, for instance *test_step?1?*"])
