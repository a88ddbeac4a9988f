"""Baseline files: safe names, strict reading, atomic writing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.environment import Environment
from perfsuite.errors import BaselineNotWritten, InvalidBaseline
from perfsuite.records import CardMatch, DeviceFacts, Expectation, Match, Result
from perfsuite.remember import files
from perfsuite.remember.documents import remember, rounds
from perfsuite.remember.schema import MAX_ROUNDS
from tests.readings import make_reading

TEST = "tests/test_a.py::test_b"
HERE = Environment.from_device(DeviceFacts("cpu", "Some CPU", "perf_counter", threads=2))
READING = make_reading(
    "step", "step", "cpu", 3, 3, 30, 0.3, (0.1, 0.1, 0.1), samples_per_s=100.0, step_seconds=0.1
)


def document(**changes):
    result = Result(TEST, Expectation(), (READING,), ())
    return {**remember([result], {"cpu": HERE})[TEST], **changes}


def stored(directory, content=None):
    path = files.path_for(directory, HERE.key, TEST)
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content or document()))
    return path


def values(baseline):
    return {name: reading.values for name, reading in baseline.readings.items()}


def test_what_is_saved_is_found_again(tmp_path):
    """A saved document gives its values back, matched exactly."""
    files.save(files.path_for(tmp_path, HERE.key, TEST), document())
    found = files.find(tmp_path, TEST, HERE)
    assert Match.EXACT is found.match
    assert {"step": {"samples_per_s": 100.0, "step_time": 0.1}} == values(found)


def test_files_are_sorted_and_short(tmp_path):
    """Diffs stay readable: sorted keys, one figure per line, all rounds on one."""
    path = files.path_for(tmp_path, HERE.key, TEST)
    files.save(path, document())
    text = path.read_text()
    assert '"rounds": [0.1, 0.1, 0.1]' in text
    assert text == files.render(json.loads(text))
    assert sorted(json.loads(text)) == list(json.loads(text))


def test_another_torch_is_near_and_another_device_is_none(tmp_path):
    """The same device with another torch is a near match, another device no match at all."""
    files.save(files.path_for(tmp_path, HERE.key, TEST), document())
    newer = files.find(tmp_path, TEST, replace(HERE, torch="99.0.1"))
    other = files.find(tmp_path, TEST, replace(HERE, device_name="Other CPU"))
    assert Match.NEAR is newer.match
    assert "torch99.0" in newer.reason
    assert Match.NONE is other.match


CARD = replace(HERE, device_kind="cuda", host="Some Host", device_uuid="GPU-11111111-a", commit="c1")


def save_for(directory, environment, seconds=0.1):
    """Store a baseline of the test as another machine would."""
    reading = READING.with_figures(step_time=seconds)
    result = Result(TEST, Expectation(), (reading,), ())
    sessions = {TEST: {"step": [{"step_time": seconds, "samples_per_s": 100.0}] * 4}}
    whole = remember([result], {"cpu": environment}, sessions)[TEST]
    files.save(files.path_for(directory, environment.key, TEST), whole)


def other(number, **changes):
    return replace(CARD, device_uuid=f"GPU-{number}{number}-b", **changes)


def test_the_cards_own_baseline_comes_first(tmp_path):
    """Whatever other cards have stored, and whatever was stored before cards were told apart."""
    earlier = replace(CARD, host=None)
    save_for(tmp_path, earlier, 0.5)
    assert (CardMatch.UNKNOWN, 0.5) == card_and_time(tmp_path)
    save_for(tmp_path, other(2), 0.2)
    assert (CardMatch.OTHER, 0.2) == card_and_time(tmp_path)
    save_for(tmp_path, CARD, 0.1)
    assert (CardMatch.SAME, 0.1) == card_and_time(tmp_path)


def card_and_time(directory):
    found = files.find(directory, TEST, CARD)
    assert found.is_gating
    return found.card, found.of("step").values["step_time"]


def test_cards_of_one_kind_are_pooled_if_they_ran_the_same_commit(tmp_path):
    """Only then do they differ by the card alone."""
    for number in (2, 3, 4):
        save_for(tmp_path, other(number), number / 10)
    save_for(tmp_path, other(5, commit="c2"))
    save_for(tmp_path, other(6, host="Other Host"))
    found = files.find(tmp_path, TEST, CARD)
    assert [[0.2] * 5, [0.3] * 5, [0.4] * 5] == [card["step"].sessions["step_time"] for card in found.cards]
    assert "1 stored, by other cards of this kind" == files.stored_text(tmp_path, CARD)


def test_a_card_in_another_host_is_near(tmp_path):
    """Shown with what differs, and not gating."""
    save_for(tmp_path, other(6, host="Other Host"))
    found = files.find(tmp_path, TEST, CARD)
    assert (Match.NEAR, "host Other Host instead of Some Host") == (found.match, found.reason)
    assert "0 stored" == files.stored_text(tmp_path, CARD)


def test_another_cards_file_in_this_cards_folder_is_refused(tmp_path):
    """Its first digits agree, or somebody copied it."""
    save_for(tmp_path, replace(CARD, device_uuid="GPU-11111111-b"))
    with pytest.raises(InvalidBaseline, match="on card GPU-11111111-b instead of GPU-11111111-a"):
        files.find(tmp_path, TEST, CARD)


def test_a_patch_release_still_matches(tmp_path):
    """Driver, Python and torch's patch level are stored, but need not match."""
    files.save(files.path_for(tmp_path, HERE.key, TEST), document())
    version = HERE.torch.split("+")[0].rsplit(".", 1)[0] + ".99"
    assert Match.EXACT is files.find(tmp_path, TEST, replace(HERE, torch=version, python="3.99")).match


def broken(change):
    whole = json.loads(json.dumps(document()))
    change(whole)
    return json.dumps(whole)


def metrics(whole):
    return whole["readings"]["step"]["metrics"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "Expecting value"),
        ('{"schema": "perfsuite-base', "Unterminated string"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "the document is [], not object"),
        ('{"schema": "perfsuite-baseline/99"}', "its schema is 'perfsuite-baseline/99'"),
        ('{"benchmarks": []}', "its schema is None"),
        (" " * 10_000_000, "10,000,000 bytes long"),
        (broken(lambda d: metrics(d)["step_time"].update(value=float("nan"))), "NaN is not a number"),
        (broken(lambda d: metrics(d)["step_time"].update(value=float("inf"))), "Infinity is not a number"),
        (
            broken(lambda d: metrics(d)["step_time"].update(value=-1)),
            "metrics.step_time.value is -1: no time is that short",
        ),
        (broken(lambda d: metrics(d)["step_time"].update(value="1")), "value is '1', not number"),
        (broken(lambda d: metrics(d)["step_time"].update(value=True)), "value is True, not number"),
        (
            broken(lambda d: metrics(d)["step_time"].update(higher_is_better=True)),
            "higher_is_better is True, not False",
        ),
        (broken(lambda d: metrics(d)["step_time"].update(unit="ms")), "unit is 'ms', not 'seconds'"),
        (
            broken(lambda d: metrics(d).update(speed={})),
            "metrics.speed is not expected; known: samples_per_s, utilization",
        ),
        (broken(lambda d: d["readings"].clear()), "readings has 0 entries, at least 1"),
        (broken(lambda d: d["readings"]["step"].pop("rounds")), "lacks rounds"),
        (broken(lambda d: d["readings"]["step"].update(rounds=[0.1] * 201)), "at most 200"),
        (broken(lambda d: d.update(test="tests/test_a.py::test_c")), "it belongs to"),
        (
            broken(lambda d: d["environment"].update(device_name=None)),
            "environment.device_name is None, not string",
        ),
        (broken(lambda d: d["environment"].update(device_name="Other")), "moved here by hand"),
        (broken(lambda d: d["environment"].update(torch=2)), "environment.torch is 2, not string or null"),
        (broken(lambda d: metrics(d)["step_time"].update(value=0)), "value is 0: no time is that short"),
        (broken(lambda d: metrics(d)["step_time"].update(value=10**400)), "value is 1000000"),
        (broken(lambda d: d["readings"]["step"].update(reported={"x": 10**400})), "reported.x is 10000"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_broken_files_are_refused_and_left_alone(tmp_path, content, told):
    """The error names the file, the reason and the remedy, and nothing is changed."""
    path = stored(tmp_path, content)
    with pytest.raises(InvalidBaseline) as refused:
        files.find(tmp_path, TEST, HERE)
    assert told in str(refused.value)
    assert str(path) in str(refused.value)
    assert "pytest --save-baseline" in str(refused.value)
    assert content == path.read_text()


def test_a_file_that_is_not_text_is_refused(tmp_path):
    """Bytes that are not UTF-8 give the same clear error."""
    stored(tmp_path).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidBaseline, match="cannot be used"):
        files.find(tmp_path, TEST, HERE)


@given(st.binary(max_size=300))
def test_random_bytes_never_escape_as_another_error(content):
    """Whatever a file holds, it is refused or read."""
    whole = files.render(document()).encode()
    for data in (content, whole[: len(content)], whole[:40] + content + whole[40:]):
        path = Path(os.environ["PERFSUITE_FUZZ"]) / "fuzz.json"
        path.write_bytes(data)
        with contextlib.suppress(InvalidBaseline):
            assert TEST == files.load(path, TEST)["test"]


@pytest.fixture(autouse=True, scope="module")
def fuzz_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFSUITE_FUZZ", str(tmp_path_factory.mktemp("fuzz")))
        yield


def test_another_machines_broken_file_does_not_disturb(tmp_path):
    """Only the file that would gate here can fail a test here."""
    path = files.path_for(tmp_path, "other_key", TEST)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert Match.NONE is files.find(tmp_path, TEST, HERE).match


AWKWARD = [
    "tests/test_a.py::test_b[a/b]",
    "tests/test_a.py::test_b[../../../etc/passwd]",
    "tests/test_a.py::test_b[naïve-日本語]",
    "tests/test_a.py::test_b[" + "x" * 300 + "]",
    "tests/test_a.py::test_b[" + "x" * 299 + "y]",
    "tests/test_a.py::TestC::test_b[1-2.5-a=b]",
    'tests/test_a.py::test_b[<>:"|?*\\]',
    "tests/test_a.py::test_b[ ]",
    "../outside/test_a.py::test_b",
    "/absolute/test_a.py::test_b",
]


def test_awkward_test_ids_get_safe_and_separate_files(tmp_path):
    """Slashes, brackets, unicode and 300 characters: inside the folder, short enough, one file each."""
    paths = [files.path_for(tmp_path, HERE.key, test) for test in AWKWARD]
    for test, path in zip(AWKWARD, paths, strict=True):
        assert path.resolve().is_relative_to(tmp_path / HERE.key)
        assert all(len(part) <= 140 and part.isascii() for part in path.relative_to(tmp_path).parts)
        files.save(path, {**document(), "test": test})
        assert Match.EXACT is files.find(tmp_path, test, HERE).match
    assert len(AWKWARD) == len(set(paths))


def test_ids_that_differ_in_colons_alone_have_files_of_their_own(tmp_path):
    """A class becomes a dot, a parameter keeps what it has."""
    ids = ("test_a.py::T::test_b[a.b]", "test_a.py::T::test_b[a::b]", "test_a.py::T.test_b[a:b]")
    assert 3 == len({files.path_for(tmp_path, "key", test) for test in ids})


def test_what_could_not_be_read_again_is_not_stored(tmp_path):
    """One name too long, and no run could use the file."""
    path = files.path_for(tmp_path, HERE.key, TEST)
    bad = document()
    bad["readings"]["step"]["places"] = {"step_time": {"x" * 501: 1.0}}
    with pytest.raises(BaselineNotWritten, match="has 501 characters, at most 500"):
        files.save(path, bad)
    assert not path.exists()


def test_a_file_nested_too_deep_is_left_to_its_own_test(tmp_path):
    """The list of stored tests goes on without it."""
    stored(tmp_path, "[" * 100_000)
    assert {} == files.stored_tests(tmp_path, HERE.key)


def test_plain_test_ids_keep_their_names(tmp_path):
    """What needs no change is not changed."""
    path = files.path_for(tmp_path, "key", "tests/perf/test_a.py::TestB::test_c[fp16-64]")
    assert "key/tests/perf/test_a.py/TestB.test_c[fp16-64].json" == path.relative_to(tmp_path).as_posix()


def test_writing_fails_clearly_where_it_cannot(tmp_path):
    """A file in place of the folder is an error before measuring and at saving, and nothing is lost."""
    blocked = tmp_path / "baselines"
    blocked.write_text("a file")
    with pytest.raises(BaselineNotWritten, match="--baseline-dir"):
        files.check_writable(blocked)
    with pytest.raises(BaselineNotWritten, match="was not written"):
        files.save(blocked / "key" / "test.json", document())
    assert "a file" == blocked.read_text()


def test_an_invalid_document_is_never_written(tmp_path):
    """The check comes before the write: a broken reading cannot replace a good file."""
    path = files.path_for(tmp_path, HERE.key, TEST)
    files.save(path, document())
    before = path.read_text()
    bad = document()
    bad["readings"]["step"]["metrics"]["step_time"]["value"] = float("nan")
    with pytest.raises(BaselineNotWritten, match="value is nan, not number"):
        files.save(path, bad)
    assert before == path.read_text()


KILLED = textwrap.dedent("""
    import json, sys
    from pathlib import Path
    from perfsuite.remember import files
    path = Path(sys.argv[1])
    document = json.loads(path.read_text())
    print("ready", flush=True)
    while True:
        document["readings"]["step"]["samples"] += 1
        files.save(path, document)
""")


def test_a_killed_save_leaves_the_old_or_the_new_file_whole(tmp_path):
    """kill -9 at any moment of saving: the file can always be read, and later saves still work."""
    path = files.path_for(tmp_path, HERE.key, TEST)
    big = document()
    big["readings"]["step"]["rounds"] = [0.123456] * MAX_ROUNDS
    files.save(path, big)
    for delay in range(12):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True)
        assert "ready\n" == child.stdout.readline()
        size = None
        for _ in range(1 + 37 * delay):  # end at another moment each time, without a clock
            size = path.stat().st_size
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert size
        assert files.load(path, TEST)
    files.save(path, document())
    assert {"step": {"samples_per_s": 100.0, "step_time": 0.1}} == values(files.find(tmp_path, TEST, HERE))


def test_two_processes_saving_at_once_leave_one_whole_file(tmp_path):
    """Writers do not remove each other's work in progress."""
    path = files.path_for(tmp_path, HERE.key, TEST)
    files.save(path, document())
    many = KILLED.replace("while True", "for _ in range(40)")
    children = [
        subprocess.Popen([sys.executable, "-c", many, str(path)], stdout=subprocess.DEVNULL) for _ in range(3)
    ]
    assert [0, 0, 0] == [child.wait() for child in children]
    assert files.load(path, TEST)
    assert [path.name] == [entry.name for entry in path.parent.iterdir()]


def test_nothing_is_remembered_of_a_run_in_which_something_failed():
    """One failed test, and no reading of the run becomes a baseline."""
    good = Result(TEST, Expectation(), (READING,), ())
    bad = Result("tests/test_a.py::test_z", Expectation(), (), (), error="RuntimeError()")
    assert {} == remember([good, bad], {"cpu": HERE})
    assert [TEST] == list(remember([good], {"cpu": HERE}))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=1000))
def test_many_steps_are_stored_as_means_of_equal_stretches(steps):
    """At most 200 rounds are kept, none invented, and their mean stays close."""
    kept = rounds(steps)
    assert len(kept) == min(len(steps), MAX_ROUNDS)
    assert min(steps) <= min(kept) + 1e-9
    assert max(kept) <= max(steps) + 1e-9
