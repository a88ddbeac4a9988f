"""The suite is whole: every optimization has contracts, every contract thresholds, every threshold a test."""

import ast
import tomllib
from pathlib import Path

import pytest

from perfsuite.collect.markers import LIMITS, parse_limits
from perfsuite.devices.model.cards import find_card
from tests.perf import table
from tests.perf.catalogue import CATALOGUE

SUITE = Path(table.__file__).parent
OWN = {"less", "more", "most", "loss", "graphs", "own_mebibytes", "share_of_best", "swing", "accuracy"}
OWN |= {"not_comparable"}  # on a device that cannot show it


def contracts():
    """List (number, test, where) of every contract in the suite's files."""
    found = []
    for path in sorted(SUITE.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", "") == "contract":
                    number, *where = (argument.value for argument in mark.args)
                    found.append((number, node.name, set(where)))
    return found


def test_every_optimization_has_a_contract():
    """None of the catalogue is left out, and none is made up."""
    assert set(CATALOGUE) == {number for number, _, _ in contracts()}


def test_every_contract_has_thresholds_where_it_runs_and_no_others():
    """cpu needs one for the CPU, gpu one for CUDA and one for the model; an emulated card may have one."""
    rows = {"cpu": {"cpu"}, "gpu": {"cuda", "model"}, "model": {"model"}}
    needed: dict[str, set[str]] = {}
    for _, test, where in contracts():
        needed.setdefault(test, set()).update(*(rows[w] for w in where))
    found = {test: set(kinds) for test, kinds in table.load().items()}
    assert needed == {test: kinds - {"emulated"} for test, kinds in found.items()}
    assert all("cuda" in kinds for kinds in found.values() if "emulated" in kinds)


def test_an_emulated_card_has_cuda_s_row_unless_it_has_its_own():
    """A row of its own is for what only an emulated card counts."""
    assert "cuda" == table.row("test_tf32_multiplies_faster", "emulated:a10").kind
    assert "emulated" == table.row("test_resident_data_never_crosses_the_bus", "emulated:a10").kind


@pytest.mark.parametrize(("test", "kinds"), list(table.load().items()))
def test_thresholds_are_the_plugin_s_or_the_suite_s_own(test, kinds):
    """A misspelt limit would be held against nothing."""
    for values in kinds.values():
        assert values, "a contract without a threshold cannot be broken"
        assert set(values) <= set(LIMITS) | OWN
        for name, value in values.items():
            for bound in value.values() if isinstance(value, dict) else (value,):  # by card
                parse_limits({name: bound} if name in LIMITS else {}, "the table")


@pytest.mark.parametrize(("card", "expected"), [("a10", 1.1), ("l4", 1.1), ("h100", 1.4), ("h100-pcie", 1.4)])
def test_a_limit_may_differ_by_card(card, expected):
    """The most similar one's holds for others."""
    row = table.Row("test_x", "cuda", {"min_speedup": {"a10": 1.1, "h100": 1.4}, "less": {"kernels": 2}})
    row.for_card(find_card(card))
    assert {"min_speedup": expected} == row.plugin_limits()
    assert {"kernels": 2} == row["less"]


def test_a_missing_row_names_what_to_add():
    """A contract on a device without thresholds does not run unlimited."""
    with pytest.raises(
        LookupError, match=r"limits.toml has no thresholds for test_x on cuda:0; add \[test_x.cuda\]"
    ):
        table.row("test_x", "cuda:0")


def test_a_threshold_nobody_asks_for_is_noticed():
    """What was not looked at is unused, what is not there says where to add it."""
    row = table.Row("test_x", "cpu", {"min_speedup": 2, "graphs": 1})
    assert {"min_speedup": 2} == row.plugin_limits()
    assert {"graphs"} == row.unused
    with pytest.raises(KeyError, match="has no swing for test_x on cpu; add it there"):
        row["swing"]


def test_the_table_is_plain_toml():
    """Readable beside the tests, without code."""
    assert tomllib.loads(table.PATH.read_text())
