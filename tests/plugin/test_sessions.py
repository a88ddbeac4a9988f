"""--perf-sessions and --perf-confirm: one process is one data point, and no test fails by a single one."""

import json
from dataclasses import replace

import pytest

import perfsuite.plugin.confirm
from perfsuite.collect.limits import SecondStage
from perfsuite.plugin import save
from perfsuite.processes.fresh import Command
from perfsuite.records import Expectation, Result
from tests.readings import make_reading

CONFTEST = """
from pathlib import Path
from perfsuite.devices.scripted import ScriptedDevice
DEVICE = ScriptedDevice()
def pytest_perf_device(config, name):
    return DEVICE if name == "scripted" else None
def next_seconds():
    file = Path(__file__).with_name("times.txt")
    first, *rest = file.read_text().split()
    file.write_text(" ".join(rest))
    return float(first)
"""
TEST = """
from conftest import DEVICE, next_seconds
def test_it(perf):
    seconds = next_seconds()
    perf(lambda: DEVICE.spend(seconds), samples_per_step=10)
"""
STEADY = (0.0100, 0.0101, 0.0099, 0.01005, 0.00995)


class Timed:
    """A project in which every process takes the next time of a list."""

    def __init__(self, pytester):
        self.pytester = pytester
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(test_it=TEST)
        pytester.makeini("[pytest]\nperf_device = scripted\naddopts = -p no:cacheprovider")

    def run(self, times, *arguments):
        (self.pytester.path / "times.txt").write_text(" ".join(map(str, times)))
        return self.pytester.runpytest_inprocess(*arguments, no_reraise_ctrlc=True)

    def save(self, times=STEADY):
        return self.run(times, "--save-baseline", f"--perf-sessions={len(times)}")

    def stored(self, times=STEADY):
        """Store a baseline of these sessions without measuring all of them."""
        self.save(times[:1])
        (path,) = self.pytester.path.glob("baselines/**/*.json")
        document = json.loads(path.read_text())
        document["readings"]["step"]["sessions"] = {"step_time": list(times)}
        path.write_text(json.dumps(document))

    @property
    def documents(self):
        return [json.loads(p.read_text()) for p in self.pytester.path.glob("baselines/**/*.json")]


@pytest.fixture
def timed(pytester):
    return Timed(pytester)


def test_every_session_is_stored(timed):
    """Five processes, five figures, and their geometric mean as the baseline's value."""
    ran = timed.save()
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["session 2 of 5, in a fresh process", "session 5 of 5, in a fresh process"])
    (document,) = timed.documents
    ran.stdout.fnmatch_lines(["  test_it.py::test_it: step time ±0.8 % in 5 sessions; *from 6 % on"])
    reading = document["readings"]["step"]
    assert list(STEADY) == reading["sessions"]["step_time"]
    assert 0.01 == pytest.approx(reading["metrics"]["step_time"]["value"], rel=1e-3)


def test_sessions_survive_what_an_ini_file_asks_for(timed):
    """Its flags reach fresh processes, where a test may use pytest's cache and another one may fail."""
    timed.pytester.makepyfile(
        test_it=f"def test_first():\n    assert False\n{TEST}",
        test_cache="def test_cache(request):\n    request.config.cache.set('a', 1)\n",
    )
    timed.pytester.makeini("[pytest]\nperf_device = scripted\naddopts = --ff --maxfail=1 --cache-clear")
    ran = timed.run(STEADY[:2], "--save-baseline", "--perf-sessions=2", "-k", "not first")
    ran.assert_outcomes(passed=2, deselected=1)
    assert [list(STEADY[:2])] == [one["readings"]["step"]["sessions"]["step_time"] for one in timed.documents]


def test_the_limit_comes_from_the_sessions_and_says_what_it_sees(timed):
    """Noise of 0.8 % and a least tolerance of 5 %: 4 % slower passes, and the table shows the bound."""
    timed.stored()
    ran = timed.run([0.0104], "--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["*baseline*see*verdict", "*-3.8 %  6 %*ok"])


def test_a_confirmed_suspicion_fails_with_both_stages(timed):
    """30 % slower at first and in every fresh process."""
    timed.stored()
    ran = timed.run([0.013] * 3, "--perf", "--perf-confirm=2")
    ran.assert_outcomes(failed=1)
    ran.stdout.fnmatch_lines(
        [
            "1 suspicious: measuring again in 2 fresh processes",
            "step time 13 ms is 30.0 % above the baseline 10 ms (allowed: 10.5 ms; noise ±0.8 %, 5 sessions)",
            "  measured again: +30.0 % in 2 fresh processes, at least +2* %",
        ]
    )
    assert 1 == ran.ret


def test_a_suspicion_that_is_not_confirmed_is_told_and_passes(timed):
    """One slow process does not mean slow code."""
    timed.stored()
    ran = timed.run([0.013, 0.0101, 0.01], "--perf", "--perf-confirm=2")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["suspicious at first, not confirmed: test_it.py::test_it: +0.5 % in 2 fresh processes"]
    )


@pytest.mark.parametrize("strict", [False, True])
def test_a_regression_that_is_expected_is_one_when_it_is_confirmed(timed, strict):
    """And passes, or fails for passing, when it is not."""
    timed.stored()
    mark = f"import pytest\n@pytest.mark.xfail(strict={strict}, reason='known')\ndef test_it"
    timed.pytester.makepyfile(test_it=TEST.replace("def test_it", mark))
    timed.run([0.013] * 3, "--perf", "--perf-confirm=2").assert_outcomes(xfailed=1)
    ran = timed.run([0.013, 0.0101, 0.01], "--perf", "--perf-confirm=2")
    ran.assert_outcomes(**({"failed": 1} if strict else {"xpassed": 1}))


TWO = """
from conftest import DEVICE, next_seconds
def test_it(perf):
    for name in ("forward", "backward"):
        seconds = next_seconds()
        perf(lambda: DEVICE.spend(seconds), samples_per_step=10, name=name)
"""


@pytest.mark.parametrize(("answer", "outcome"), [("fail", "failed"), ("skip", "skipped"), ("warn", "passed")])
def test_a_dropped_suspicion_does_not_hide_what_does_not_count(timed, answer, outcome):
    """Fresh processes drop the suspicion of one reading; the other collapsed, so the test stays invalid."""
    timed.pytester.makepyfile(test_it=TWO)
    timed.run([0.01] * 2, "--save-baseline", "--perf-sessions=1")
    times = [0.0001, 0.013] + [0.01] * 4  # invalid, suspicious; then twice as in the baseline
    ran = timed.run(times, "--perf", "--perf-confirm=2", f"--perf-on-invalid={answer}", "--perf-cooldown=0")
    ran.stdout.fnmatch_lines(["1 suspicious: *"])
    ran.assert_outcomes(**{outcome: 1})


def test_a_slow_first_reading_is_never_pooled_with_the_fresh_ones(timed):
    """The second stage uses fresh data only: a first reading of a minute does not change its result."""
    timed.stored()
    timed.run([60.0, 0.0101, 0.01], "--perf", "--perf-confirm=2").assert_outcomes(passed=1)


def test_fewer_sessions_keep_the_fixed_tolerance_and_say_so(timed):
    """Two sessions say nothing about noise: 8 % slower passes by the fixed 10 %."""
    timed.stored(STEADY[:2])
    ran = timed.run([0.0108], "--perf")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        ["1 test has a baseline of fewer than 5 sessions, judged by a fixed tolerance; *--save-baseline*"]
    )


def test_a_baseline_of_few_sessions_is_confirmed_by_its_tolerance(timed):
    """Beyond the tolerance at first and in fresh processes: failed; only at first: not."""
    timed.save(STEADY[:1])
    timed.run([0.012] * 3, "--perf", "--perf-confirm=2").assert_outcomes(failed=1)
    timed.run([0.012, 0.0101, 0.0102], "--perf", "--perf-confirm=2").assert_outcomes(passed=1)


def test_too_noisy_to_be_a_baseline_is_refused_with_the_figures(timed):
    """A limit nobody could miss guards nothing."""
    ran = timed.save((0.010, 0.018, 0.009, 0.017, 0.008))
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(
        ["not stored: test_it.py::test_it: step time varies by ±4* % from session to session (5 sessions); *"]
    )
    assert [] == timed.documents


def test_a_session_that_fails_stores_nothing_and_says_why(timed):
    """The times run out in the third process: its error is reported."""
    ran = timed.run(STEADY[:2], "--save-baseline", "--perf-sessions=5")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(["not stored: test_it.py::test_it: it failed in session 3: *"])
    assert [] == timed.documents


def test_a_run_that_is_stopped_reports_its_suspicions_as_failures(timed):
    """Nothing suspicious turns green because somebody was in a hurry."""
    timed.stored()
    timed.pytester.makepyfile(test_z="def test_bad(): assert 0\ndef test_never(): pass")
    ran = timed.run([0.013], "--perf", "-x")
    ran.assert_outcomes(failed=2)
    ran.stdout.fnmatch_lines(["  measured again: not confirmed: the run was stopped before *"])


def test_ctrl_c_in_the_second_stage_loses_no_suspicion(timed, monkeypatch):
    """What was held back is reported as a failure before the run ends."""

    def stopped(*_):
        raise KeyboardInterrupt

    timed.stored()
    monkeypatch.setattr(perfsuite.plugin.confirm, "take_session", stopped)
    ran = timed.run([0.013], "--perf")
    assert 2 == ran.ret
    ran.stdout.fnmatch_lines(["*1 failed*"])


def test_ctrl_c_between_sessions_stores_nothing(timed, monkeypatch):
    """Half a baseline is none."""

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(save, "take_session", stopped)
    ran = timed.save()
    assert 2 == ran.ret
    ran.stdout.fnmatch_lines(["stopped before all sessions were measured"])
    assert [] == timed.documents


DISTURBED = CONFTEST.replace(
    "DEVICE = ScriptedDevice()",
    """
from dataclasses import replace
class Disturbed(ScriptedDevice):
    disturbed = 0.0  # share of the window that others had the cores for, taken with the seconds
    def start(self):
        window = super().start()
        stop = window.stop
        window.stop = lambda: with_queue(stop())
        return window
def with_queue(timing):
    return replace(timing, reported={"queued_seconds": DEVICE.disturbed * timing.wall_seconds})
DEVICE = Disturbed()
""",
).replace(
    "    return float(first)",
    "    DEVICE.disturbed = 0.5 * first.endswith('!')\n    return float(first.strip('!'))",
)


@pytest.fixture
def disturbed(timed):
    """A project whose process is disturbed while it takes a time with an exclamation mark."""
    timed.pytester.makeconftest(DISTURBED)
    return timed


def test_a_session_that_does_not_count_is_measured_again(disturbed):
    """A neighbour's burst in the third session costs one more process, not the four that count."""
    ran = disturbed.run(["0.0100", "0.0101", "0.0300!", "0.0099", "0.01005", "0.00995"], "--save-baseline")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(
        [
            "session 3 of 5, in a fresh process",
            "session 3 does not count for 1 test: measuring again (other processes had the cores for 50 %*)",
            "session 4 of 5, in a fresh process",
            "stored 1 baseline in baselines*",
        ]
    )
    (document,) = disturbed.documents
    assert [0.01, 0.0101, 0.0099, 0.01005, 0.00995] == document["readings"]["step"]["sessions"]["step_time"]


def test_the_first_session_is_measured_again_as_well(disturbed):
    """The run itself is one of the sessions; nothing of it is stored when it does not count."""
    ran = disturbed.run(["0.0300!", "0.0310!", *map(str, STEADY)], "--save-baseline")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["this session does not count for 1 test: measuring again (*)"] * 2)
    (document,) = disturbed.documents
    reading = document["readings"]["step"]
    assert list(STEADY) == reading["sessions"]["step_time"]
    assert 0.01 == pytest.approx(reading["metrics"]["step_time"]["value"], rel=1e-3)
    assert {STEADY[0]} == set(reading["rounds"])
    assert {} == reading["reported"]


def test_a_session_that_never_counts_is_given_up_after_two_more(disturbed):
    """Three times in a row are the machine, not a burst."""
    ran = disturbed.run(
        ["0.0100", "0.0300!", "0.0300!", "0.0300!", "0.0100"], "--save-baseline", "--perf-sessions=2"
    )
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(
        ["not stored: test_it.py::test_it: session 2 does not count, measured 3 times: other processes had *"]
    )
    assert [] == disturbed.documents
    assert "0.0100" == (disturbed.pytester.path / "times.txt").read_text()


def test_a_crowded_machine_neither_fails_nor_stores(disturbed):
    """A test that is slower because others had the cores is no regression, and no baseline either."""
    disturbed.stored()
    ran = disturbed.run(["0.013!"] * 3, "--perf", "--perf-confirm=2", "--perf-on-invalid=skip")
    ran.assert_outcomes(skipped=1)
    ran.stdout.fnmatch_lines(
        ["invalid measurement: *none of 2 fresh processes counts: other processes had the cores for 50 %*"]
    )
    ran = disturbed.run([f"{seconds}!" for seconds in STEADY], "--save-baseline", "--perf-sessions=5")
    assert 1 == ran.ret
    ran.stdout.fnmatch_lines(
        ["not stored: *: this session does not count, measured 3 times: other processes had the cores*"]
    )


def test_many_tests_share_the_family_error(timed, monkeypatch):
    """A slowdown that is certain alone need not be among a thousand: Holm's method decides."""
    timed.stored((0.0100, 0.0104, 0.0096, 0.0102, 0.0098))
    slower = [0.0115, 0.0109, 0.0113]
    timed.run(slower, "--perf", "--perf-confirm=2").assert_outcomes(failed=1)
    monkeypatch.setattr(perfsuite.plugin.confirm.ConfirmHooks, "_gated", lambda self: 1000)
    timed.run(slower, "--perf", "--perf-confirm=2").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "argument", ["--perf-sessions=0", "--perf-sessions=many", "--perf-confirm=-1", "--perf-family-error=60 %"]
)
def test_numbers_that_cannot_be_meant_are_refused(timed, argument):
    """The message names the option and what it takes."""
    ran = timed.run([0.01], "--perf", argument)
    assert 4 == ran.ret
    ran.stderr.fnmatch_lines([f"*perfsuite: {argument.partition('=')[0]}: *; use for example *"])


def test_counts_of_a_modelled_device_need_one_session(monkeypatch, tmp_path):
    """The same code counts the same: no fresh process is started for a modelled reading."""
    monkeypatch.setattr(save, "take_session", lambda *_: pytest.fail("a process was started"))
    reading = make_reading("step", "step", "model:a10", 1, 1, 1, 1.0, (1.0,), modelled=True)
    result = Result("t", Expectation(), (reading,), ())
    arguments = (Command((), tmp_path), 5, SecondStage(), lambda _: None)
    assert {} == save.measure_sessions([result], *arguments).figures
    measured = replace(result, readings=(replace(reading, modelled=False),))
    with pytest.raises(pytest.fail.Exception, match="a process was started"):
        save.measure_sessions([measured], *arguments)
