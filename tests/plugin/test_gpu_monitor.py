"""The gpu_monitor fixture in the real plugin on the stand-in library, and on a machine without a GPU."""

import pytest

from tests.nvml import standin
from tests.nvml.standin import UUID, script, square_wave

WATCHED = """
from tests.nvml.watch import ScriptClock

def test_it(gpu_monitor):
    clock = ScriptClock(40.0)
    with gpu_monitor({uuid}clock=clock) as seen:
        assert seen.utilization.mean is None
        assert clock.reached.wait(20)
    {check}
"""


@pytest.fixture
def run(project, library, monkeypatch):
    """Run one test of a project whose NVIDIA library is the stand-in."""

    def run(text, check, *arguments, uuid=""):
        path = project.path / "script.txt"
        path.write_text(text)
        for name, value in standin.environment(library, path).items():
            monkeypatch.setenv(name, value)
        project.pytester.makepyfile(WATCHED.format(check=check.replace("\n", "\n    "), uuid=uuid))
        return project.run_apart(*arguments)

    return run


@pytest.mark.parametrize("arguments", [[], ["--perf"]])
def test_the_series_can_be_asserted(run, arguments):
    """Mean, swing, period, idle stretch and the peak of the memory, with and without --perf."""
    lines = [*square_wave(9, 90, 9.5, 60), "at 0 free 20e9", "at 12 free 6e9", "at 20 free 22e9"]
    check = (
        "assert abs(seen.utilization.mean - 0.495) < 0.03\n"
        "assert abs(seen.utilization.swing - 0.81) < 0.05\n"
        "assert abs(seen.utilization.period_s - 9.5) < 0.5\n"
        "assert seen.utilization.samples > 200\n"
        "assert seen.utilization.idle_stretch_s == 0\n"
        "assert seen.memory.peak == 18e9\n"
        "assert (seen.why, seen.invalid) == ('', ())"
    )
    ran = run(script(*lines), check, "-p", "no:cacheprovider", *arguments)
    ran.assert_outcomes(passed=1)


def test_the_series_can_be_drawn(run, project):
    """A picture of a plausible size, without pyplot and its global state."""
    check = (
        "assert seen.plot('seen.png').stat().st_size > 5000\n"
        "import sys; assert 'matplotlib.pyplot' not in sys.modules"
    )
    run(script(*square_wave(9, 90, 9.5, 60)), check).assert_outcomes(passed=1)
    assert (project.path / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_remedy_is_named(run):
    """Drawing is an extra."""
    check = (
        "import sys, pytest\n"
        "from perfsuite.errors import PerfsuiteError\n"
        "sys.modules['matplotlib.figure'] = None\n"
        "with pytest.raises(PerfsuiteError, match='pip install matplotlib'): seen.plot('seen.png')"
    )
    run(script("at 0 utilization 50"), check).assert_outcomes(passed=1)


def test_of_several_cards_one_must_be_named(run, monkeypatch):
    """A UUID, or the environment's, decides which card is meant; an index never does."""
    text = script("at 0 utilization 50", f"card {UUID[:-1]}d")
    half = "assert abs(seen.utilization.mean - 0.5) < 0.01"
    unnamed = f"{half}\nwith gpu_monitor() as other: pass\nassert 'there are 2 cards, name one' in other.why"
    run(text, unnamed, uuid=f"uuid={UUID!r}, ").assert_outcomes(passed=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", UUID)
    run(text, half).assert_outcomes(passed=1)


def test_a_machine_without_gpu_says_so(project, monkeypatch):
    """Every figure is None, the reason is given, nothing fails by itself."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    project.pytester.makepyfile(
        """
        import pytest
        from perfsuite.errors import PerfsuiteError

        def test_it(gpu_monitor):
            with gpu_monitor(uuid="GPU-nowhere") as seen:
                pass
            assert seen.utilization.mean is seen.utilization.swing is seen.utilization.period_s is None
            assert seen.memory.peak is None
            assert "NVIDIA" in seen.why or "does not know" in seen.why
            assert seen.invalid == ()
            with pytest.raises(PerfsuiteError, match="nothing to plot"):
                seen.plot("seen.png")
        """
    )
    project.run_apart().assert_outcomes(passed=1)


def test_an_error_in_the_block_is_the_tests_own(project):
    """The sampler stops and the error is raised."""
    project.pytester.makepyfile(
        """
        import pytest
        def test_it(gpu_monitor):
            with pytest.raises(ZeroDivisionError), gpu_monitor(uuid="GPU-nowhere"):
                1 / 0
        """
    )
    project.run_apart().assert_outcomes(passed=1)
