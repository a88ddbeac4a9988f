"""A comparison with scripted sides: turns, pairs, tests that cannot be compared, and the judgement."""

import math
from dataclasses import replace

import pytest

from perfsuite.against import table as report
from perfsuite.against.decide import Call, Rule, judge_findings
from perfsuite.against.pairs import ComparedReading, Findings, compare_versions
from perfsuite.errors import RefUnusable
from perfsuite.processes.side import pack
from perfsuite.records import Outcome
from perfsuite.report.terminal import against_baseline
from tests.readings import changed, make_reading

READING = make_reading(
    "step", "step", "cpu", 1, 1, 1, 1.0, (0.01,), step_seconds=0.01, peak_memory_bytes=2.0**20
)


def ready(**changes):
    has_blocks = changes.pop("has_blocks", True)
    reading = pack(changed(READING, **changes))
    return {"event": "ready", "reading": reading, "has_blocks": has_blocks, "block_seconds": 0.5}


READY = ready()
END = {"event": "end", "outcome": "passed", "text": "", "foreign": []}


class Side:
    """A side with scripted messages and a fixed cost; every block is written into a diary."""

    def __init__(self, name, cost, diary, readings=(READY,), end=END, collected=("t",), errors=None):
        self._said = [{"tests": list(collected), "errors": errors or {}}, {"event": "test"}]
        self._rest = [*readings, end]
        self._name, self._cost, self._diary = name, cost, diary
        self.is_closed = False

    def receive(self):
        return self._said.pop(0)

    def send(self, **message):
        self._diary.append((self._name, message["tests"]))

    def request(self, do, seconds=None):
        if do != "block":
            return self._rest.pop(0)
        self._diary.append(self._name)
        return {"event": "block", "cost": self._cost, "seconds": seconds}

    def close(self):
        self.is_closed = True


def play(old=0.01, new=0.01, pairs=2, tests=("t",), there=None, here=None):
    """Compare two scripted sides and return the findings and the diary."""
    diary, sides = [], []

    def open_side(is_ref):
        name, cost, script = ("old", old, there) if is_ref else ("new", new, here)
        sides.append(Side(name, cost, diary, **(script or {})))
        return sides[-1]

    try:
        return compare_versions(open_side, tests, pairs=pairs, seconds=4.0 * pairs, ref="main"), diary
    finally:
        assert all(side.is_closed for side in sides)  # whatever happens, no process is left


def test_blocks_alternate_and_the_order_is_swapped():
    """A B, B A, A B: the side that runs first in one turn runs second in the next."""
    _, diary = play(pairs=1)
    blocks = [entry for entry in diary if isinstance(entry, str)]
    assert ["old", "new", "new", "old", "old", "new", "new", "old"] == blocks


def test_the_next_pair_begins_the_other_way_round():
    """The side that starts changes from pair to pair, too."""
    _, diary = play(pairs=2)
    half = len(diary) // 2
    firsts = [
        next(entry for entry in part if isinstance(entry, str)) for part in (diary[:half], diary[half:])
    ]
    assert ["old", "new"] == firsts


def test_every_pair_is_one_number():
    """Many turns, two pairs: two logarithms of new over old."""
    findings, _ = play(new=0.011)
    (found,) = findings.readings["t"].values()
    assert [pytest.approx(math.log(1.1))] * 2 == found.differences


def test_a_ref_that_is_the_project_itself_ends_the_comparison():
    """With the project's modules on the ref's side the comparison would mean nothing."""
    with pytest.raises(RefUnusable, match="compared with itself: subject"):
        play(there={"end": {**END, "foreign": ["subject"]}})


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        ({"collected": ()}, {}, "not in main: new or renamed"),
        ({"readings": (ready(kind="loop"),)}, {}, "takes step (step) here, step (loop) at main"),
        ({"readings": ()}, {}, "took no reading that can be compared"),
        ({"end": {**END, "outcome": "failed", "text": "x\nboom"}}, {}, "failed at main: boom"),
    ],
)
def test_what_cannot_be_compared_is_told(there, here, told):
    """Each test with its reason."""
    findings, _ = play(there=there, here=here)
    assert told in findings.not_compared["t"]


def test_a_file_that_does_not_import_at_the_ref_is_told_for_its_tests():
    """Other tests are still compared."""
    errors = {"a.py": "Traceback\nImportError: gone"}
    findings, _ = play(tests=("a.py::t", "t"), there={"errors": errors}, here={"collected": ("a.py::t", "t")})
    assert "does not import at main: ImportError: gone" in findings.not_compared["a.py::t"]
    assert ["t"] == list(findings.readings)


def test_a_failure_here_is_not_measured_again_and_again():
    """Once failed, a test is settled: no further pair is started for it."""
    findings, diary = play(
        pairs=3, here={"readings": (), "end": {**END, "outcome": "failed", "text": "boom"}}
    )
    assert {"t": "boom"} == findings.failed
    assert [("old", ["t"]), ("new", ["t"])] == diary


def judged(differences, modelled=False, old=None, new=None, invalid=(), **rule):
    before, after = (
        replace(READING, figures=figures or READING.figures, modelled=modelled) for figures in (old, new)
    )
    one = ComparedReading(before, after, list(invalid), list(differences))
    (found,) = judge_findings(Findings({"t": {"step": one}}), Rule("main", **rule))
    return found


def test_the_call_follows_the_pairs():
    """Slower, the same, and too noisy to decide."""
    assert Call.REGRESSION is judged([0.05 + 0.001 * i for i in range(8)]).call
    assert Call.OK is judged([0.001, -0.001] * 4).call
    assert Call.INCONCLUSIVE is judged([0.2, -0.2] * 4).call


def test_the_tolerance_says_what_ok_rules_out():
    """A noise of 4 % rules out 10 %, not 5 %."""
    noisy = [0.04, -0.04] * 4
    assert [Call.INCONCLUSIVE, Call.OK] == [judged(noisy, tolerance=t).call for t in (0.03, 0.10)]


def test_a_slowdown_within_the_tolerance_is_no_alarm():
    """5 % slower for certain is a regression, unless 10 % are tolerated."""
    slower = [0.05 + 0.001 * i for i in range(8)]
    assert [Call.REGRESSION, Call.OK] == [judged(slower, tolerance=t).call for t in (None, 0.10)]


def test_counts_of_a_modelled_device_are_exact():
    """One kernel more is a regression, without a pair."""
    old, new = ({"step_time": 0.01, "kernels": count} for count in (24, 25))
    found = judged([], modelled=True, old=old, new=new)
    assert [Outcome.MISSED] == [v.outcome for v in found.verdicts if v.limit.metric.name == "kernels"]
    assert ["kernels per step 25 is 4.2 % above main 24 (allowed: 24)"] == report.failures(found, "main")


def test_times_of_a_device_that_compares_none_are_not_held_against_the_ref():
    """Nine times slower on an emulated card is the host's load; a kernel more is not."""
    old, new = {"step_time": 0.01, "kernels": 24}, {"step_time": 0.09, "kernels": 25}
    found = judged([], modelled=True, old=old, new=new, compares_times=False)
    assert ["kernels"] == [verdict.limit.metric.name for verdict in found.verdicts]
    (shown,) = report.as_results([found], Rule("main", compares_times=False))
    assert "–" == against_baseline(shown, shown.readings[0])
    assert {"kernels": 24} == shown.expectation.baseline.of("step").values


def test_an_invalid_reading_is_never_ok():
    """A throttled card cannot be compared."""
    found = judged([0.0] * 8, invalid=("throttled", "throttled"))
    assert (Call.INCONCLUSIVE, ("throttled",)) == (found.call, found.invalid)
    assert "invalid measurement: throttled" == report.sentence(found, "main")


def test_of_several_readings_each_is_named():
    """One reading needs no name, two do."""
    slower = [0.05 + 0.001 * i for i in range(8)]
    a, b, step = (
        ComparedReading(replace(READING, name=name), replace(READING, name=name), [], slower)
        for name in ("a", "b", "step")
    )
    found = judge_findings(Findings({"t": {"a": a, "b": b}, "u": {"step": step}}), Rule("main"))
    said = [report.sentence(each, "main").partition(" step time")[0] for each in found]
    assert ["a: slower:", "b: slower:", "slower:"] == said
    rows = [text.split("  ")[0] for text, _ in report.table(found, Findings(), "main", 100)]
    assert ["test", "t (a)", "t (b)", "u"] == [row.strip() for row in rows]


def test_findings_become_results_that_other_outputs_can_show():
    """The figures of the turns, the old version as the baseline, and a verdict for each call."""
    calls = {
        "slow": [0.05 + 0.001 * i for i in range(8)],
        "same": [0.001, -0.001] * 4,
        "wild": [0.2, -0.2] * 4,
    }
    findings = Findings(
        {
            test: {
                "step": ComparedReading(READING, READING, [], logs, costs=[(0.01, 0.01 * math.exp(logs[0]))])
            }
            for test, logs in calls.items()
        }
    )
    rule = Rule("main")
    results = {one.test: one for one in report.as_results(judge_findings(findings, rule), rule)}
    outcomes = {test: [v.outcome for v in result.verdicts][-1] for test, result in results.items()}
    assert {
        "slow": Outcome.MISSED,
        "same": Outcome.PASSED,
        "wild": Outcome.INCONCLUSIVE,
    } == outcomes
    assert pytest.approx(0.01 * math.exp(0.05)) == results["slow"].readings[0].step_seconds
    assert 0.01 == results["slow"].expectation.baseline.of("step").values["step_time"]
    assert [True, False, False] == [results[test].is_failed for test in calls]
