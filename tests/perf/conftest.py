"""The suite's fixtures, the modelled card for gpu tests where there is no real one, and the closing table."""

from collections.abc import Iterator

import pytest

from perfsuite.plugin import RUN
from tests.perf import table
from tests.perf.closing import ROWS, Rows, render
from tests.perf.contract import Case

TOLD = pytest.StashKey[list[str]]()  # what routine checks and scenarios have to say at the end
MODELLED = "model:a10"  # what gpu tests run on where torch sees no GPU


def pytest_configure(config: pytest.Config) -> None:
    """Make room for the closing table."""
    config.stash[ROWS] = Rows()
    config.stash[TOLD] = []


@pytest.hookimpl(tryfirst=True)  # before the plugin decides what cannot run here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let gpu tests of this folder run on a modelled card where the session has no accelerator."""
    run = config.stash.get(RUN, None)
    if run is None or run.device.is_accelerator or config.getoption("perfsuite_perf_device"):
        return
    for item in items:
        if "tests/perf/" in item.nodeid and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.perf(device=MODELLED))


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    """One contract on one device, with its thresholds, sabotaged if the command line says so."""
    number = request.node.get_closest_marker("contract").args[0]
    perf = request.getfixturevalue("perf")
    if request.param == "model" and not perf.device_name.startswith("model:"):
        pytest.skip(f"a scripted loader is played by a modelled card only, this is {perf.device_name}")
    asked = request.config.getoption("--perf-sabotage")
    limits = table.row(request.function.__name__, perf.device_name)
    case = Case(number, perf, limits, is_sabotaged=asked in ("all", number))
    rows = request.config.stash[ROWS]
    rows.cases[request.node.nodeid] = case
    yield case
    if limits.unused and rows.outcomes.get(request.node.nodeid) == "passed":
        pytest.fail(f"{table.PATH.name}: {', '.join(sorted(limits.unused))} is held against nothing")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Keep what became of every contract."""
    report = yield
    item.config.stash[ROWS].note(item, report)
    return report


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    """Print every optimization with its figure and verdict."""
    lines = list(render(config.stash[ROWS], config.getoption("--perf-sabotage")))
    for told in config.stash[TOLD]:
        terminalreporter.write_line(told)
    if lines:
        terminalreporter.write_sep("=", "optimizations")
    for text, colour in lines:
        terminalreporter.write_line(text, **({colour: True} if colour else {}))
