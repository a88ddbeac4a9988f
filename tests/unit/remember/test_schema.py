"""The schemas of baselines and readings: bounded, committed as files, and checked as the standard says."""

import copy
import json
import math
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfsuite.remember.documents import stored_reading
from perfsuite.remember.files import render
from perfsuite.remember.schema import (
    InvalidDocument,
    baseline_schema,
    problems,
    read_json,
    readings_schema,
)
from tests.readings import make_reading

ROOT = Path(__file__).parents[3]
READING = make_reading(
    "step",
    "step",
    "cpu",
    3,
    1,
    12,
    0.3,
    (0.1, 0.1, 0.1),
    samples_per_s=40.0,
    step_seconds=0.1,
    shares={"kernels": 0.75, "other": 0.25},
    reported={"num_workers": 0.0},
)
DOCUMENT = {
    "schema": "perfsuite-baseline/1",
    "test": "tests/test_a.py::test_b",
    "environment": {"device_kind": "cpu", "device_name": "a processor", "threads": 2, "cuda": None},
    "readings": {"step": stored_reading(READING)},
}


def changed(*path, value):
    """Return the document with one entry replaced."""
    document = copy.deepcopy(DOCUMENT)
    inner = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return document


def told(document, schema=None):
    return next(problems(document, schema or baseline_schema()), "")


@pytest.mark.parametrize("of", ["baseline", "readings"])
def test_the_committed_schemas_are_the_ones_in_use(of):
    """docs/schemas is what `python -m perfsuite schema` prints, and is a schema itself."""
    schema = baseline_schema() if of == "baseline" else readings_schema()
    assert schema == json.loads((ROOT / "docs" / "schemas" / f"{of}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)


def test_what_we_store_fits():
    """A reading as remembered, and every baseline in the repository."""
    assert "" == told(DOCUMENT)
    committed = list((ROOT / "baselines").rglob("*.json"))
    assert committed
    for path in committed:
        assert "" == told(read_json(path, 1_000_000)), path


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (["readings", "step", "steps"], math.nan, "readings.step.steps is nan, not integer"),
        (["readings", "step", "rounds"], [math.inf], "readings.step.rounds[0] is inf, not number"),
        (["readings", "step", "rounds"], [1e300], "readings.step.rounds[0] is 1e+300, above 1e+18"),
        (["readings", "step", "rounds"], [-1], "readings.step.rounds[0] is -1, below 0"),
        (["readings", "step", "rounds"], [0.1] * 201, "has 201 entries, at most 200 are allowed"),
        (["readings", "step", "rounds"], [True], "readings.step.rounds[0] is True, not number"),
        (["readings", "step", "kind"], "walk", "readings.step.kind is 'walk', not one of 'step'"),
        (["readings", "step", "pickle"], "x", "readings.step.pickle is not expected"),
        (["readings", "step", "shares"], {"kernels": 2}, "readings.step.shares.kernels is 2, above 1.000001"),
        (["readings", "step", "metrics", "step_time", "unit"], "ms", "unit is 'ms', not 'seconds'"),
        (["readings", "step", "metrics", "step_time", "higher_is_better"], 0, "is 0, not False"),
        (["readings"], {}, "readings has 0 entries, at least 1 are needed"),
        (["test"], "x" * 501, "test has 501 characters, at most 500 are allowed"),
        (["environment"], {"device_kind": "cpu"}, "environment lacks device_name"),
    ],
)
def test_what_cannot_be_a_baseline_is_named(path, value, expected):
    """The path to it, what it is, what it should be."""
    assert expected in told(changed(*path, value=value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN is not a number a reading can have"),
        ('{"a": 1, "a": 2}', "it has a key twice in one object"),
        ("[" * 100_000, "it is nested too deep"),
        (" " * 2_000, "it is 2,000 bytes long, at most 1,000 are read"),
    ],
)
def test_files_that_are_no_plain_json_are_refused(tmp_path, text, reason):
    """Before any of it is used."""
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InvalidDocument, match=reason):
        read_json(path, 1_000 if "bytes" in reason else 1_000_000)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = [
    ("schema",),
    ("test",),
    ("environment",),
    ("environment", "threads"),
    ("readings",),
    ("readings", "step"),
    ("readings", "step", "kind"),
    ("readings", "step", "steps"),
    ("readings", "step", "rounds"),
    ("readings", "step", "shares"),
    ("readings", "step", "reported"),
    ("readings", "step", "places"),
    ("readings", "step", "sessions"),
    ("readings", "step", "metrics"),
    ("readings", "step", "metrics", "step_time"),
    ("readings", "step", "metrics", "step_time", "value"),
]
STANDARD = jsonschema.Draft202012Validator(baseline_schema())


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(PATHS), value=JSON)
def test_our_check_agrees_with_the_standard(path, value):
    """For any JSON at any path: refused by us exactly where jsonschema refuses it."""
    document = changed(*path, value=value)
    is_infinite = "inf" in json.dumps(value).lower()  # is no JSON; jsonschema does not know
    assert STANDARD.is_valid(document) == (not told(document)) or is_infinite


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_no_document_makes_the_check_stumble(value):
    """It returns; it does not raise."""
    assert isinstance(told(value), str)
    assert isinstance(told(value, readings_schema()), str)


def test_a_rendered_baseline_is_read_back(tmp_path):
    """What save writes, the strict reader takes."""
    path = tmp_path / "a.json"
    path.write_text(render(DOCUMENT))
    assert DOCUMENT == read_json(path, 1_000_000)
