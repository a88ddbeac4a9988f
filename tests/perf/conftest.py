"""The suite's fixtures, the modelled card for gpu tests where there is no real one, and the closing table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.perf import claims, table
from tests.perf.closing import DEVICE_NAMES, ROWS, SECTIONS, TOLD, Rows, render
from tests.perf.contract import CARDS, Case
from tests.perf.figures import card_of
from tests.perf.switches import sabotage_of

MODELLED = "model:a10"  # what gpu tests run on where torch sees no GPU


def pytest_configure(config: pytest.Config) -> None:
    """Make room for the closing table."""
    config.stash[ROWS] = Rows()
    config.stash[TOLD] = []
    config.stash[SECTIONS] = {}
    config.stash[DEVICE_NAMES] = []


@pytest.hookimpl(tryfirst=True)  # before the plugin decides what cannot run here
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let gpu tests of this folder run on a modelled card where the session has no accelerator."""
    if torch.cuda.is_available() or config.getoption("perfsuite_perf_device"):
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
    limits = table.row(request.function.__name__, perf.device_name)
    if "not_comparable" in limits:
        pytest.skip(f"not comparable on {perf.device_name}: {limits['not_comparable']}")
    sabotage = sabotage_of(request.config.getoption("--perf-sabotage"), number)
    case = Case(number, perf, limits, sabotage)
    if case.kind in CARDS:
        card = card_of(perf.device_name, perf.device)
        limits.for_card(card)
        if not request.config.getoption("--perf-without-figures"):
            case.card_limits = table.card_limits(request.function.__name__, card)
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


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page of claims where it was asked for and all documents ran."""
    path, sections = session.config.getoption("--perf-claims"), session.config.stash[SECTIONS]
    if not path:
        return
    missing = [document.name for document in claims.load() if document.name not in sections]
    if missing or session.exitstatus != pytest.ExitCode.OK:
        session.config.stash[TOLD].append(f"{path} was not written: {', '.join(missing) or 'a test'} failed")
        return
    device = session.config.stash[DEVICE_NAMES][0]
    how = f"modelled for {device}, no figure is measured" if device.startswith("model") else f"on {device}"
    Path(path).write_text(claims.page(sections.values(), how), encoding="utf-8")
    session.config.stash[TOLD].append(f"written to {path}")


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    """Print every optimization with its figure and verdict."""
    lines = list(render(config.stash[ROWS], config.getoption("--perf-sabotage")))
    for told in config.stash[TOLD]:
        terminalreporter.write_line(told)
    if lines:
        terminalreporter.write_sep("=", "optimizations")
    for text, colour in lines:
        terminalreporter.write_line(text, **({colour: True} if colour else {}))
