"""The pytest hooks under pytest-xdist: one worker per GPU, and a controller that reports for all."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from perfsuite.devices.open import resolve
from perfsuite.environment import Environment
from perfsuite.errors import DeviceMissing, PerfsuiteError
from perfsuite.plugin.device_queue import BUSY
from perfsuite.plugin.ledger import WORKER_KEY, Ledger
from perfsuite.plugin.run import PerfRun
from perfsuite.plugin.settings import Options
from perfsuite.processes.side import pack, unpack
from perfsuite.records import Reading, Result
from perfsuite.report.machine import plain

_REPORTED = "perfsuite_carried"
_ALONE = "run --perf without pytest-xdist (-n 0)"


@dataclass(frozen=True)
class WorkerResult:
    """A test's result and what else the controller needs of it."""

    result: Result | None
    environments: Mapping[str, Environment]  # by device
    line: int | None = None
    params: Mapping[str, object] | None = None
    benchmarked: int = 0


def unpack_from(text: str, card: int) -> WorkerResult:
    """Return a worker's result; its only card, number 0 there, gets its number among all cards."""
    received: WorkerResult = unpack(text)
    result = received.result
    if result is not None:
        result = replace(result, readings=tuple(_renamed(reading, card) for reading in result.readings))
    environments = {_name(device, card): environment for device, environment in received.environments.items()}
    return replace(received, result=result, environments=environments)


def _name(device: str, card: int) -> str:
    kind, _, index = device.rpartition(":")
    return f"{kind}:{card}" if index == "0" else device


def _renamed(reading: Reading, card: int) -> Reading:
    without = None if reading.without is None else _renamed(reading.without, card)
    return replace(reading, device=_name(reading.device, card), without=without)


def is_controller(config: pytest.Config) -> bool:
    """Return whether this process leaves the tests to workers of pytest-xdist."""
    option = config.option
    is_distributed = getattr(option, "dist", "no") != "no" and bool(getattr(option, "tx", None))
    return is_distributed and not option.collectonly and not is_worker(config)


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def restrict_to_card(config: pytest.Config) -> None:
    """Make only this worker's card visible; must happen before torch initializes."""
    received = config.workerinput.get(WORKER_KEY)  # type: ignore[attr-defined]
    if received is None:
        raise pytest.UsageError(f"perfsuite: no GPU was assigned to this worker; {_ALONE}")
    os.environ[received["variable"]] = received["card"]


@dataclass(frozen=True)
class Cards:
    """The workers' cards, one each, and the environment variable that makes only one visible."""

    variable: str
    names: tuple[str, ...]


def assign_cards(config: pytest.Config, options: Options) -> Cards:
    """Return each worker's card, or raise if parallel tests would disturb each other's measurements."""
    from xdist.workermanage import parse_tx_spec_config

    device = options.settings({}).device
    kind, which = None, ""
    with contextlib.suppress(DeviceMissing):  # a device added by the project; there is only one of it
        kind, which = resolve(device)
    specs = parse_tx_spec_config(config)
    if kind is None or which or not kind.visible_variable:
        name = "cpu" if device == "auto" else device
        raise _refused(f"tests measured in parallel on one device ({name}) disturb each other")
    if options.save_baseline or options.against:
        flag = "--against" if options.against else "--save-baseline"
        raise _refused(f"{flag} measures in fresh processes, one after the other")
    if config.option.dist == "each" or any(not spec.startswith("popen") for spec in specs):
        raise _refused("its workers must share the GPUs of this machine, and each test runs on one of them")
    try:
        cards = kind.visible_cards(os.environ)
    except PerfsuiteError as error:
        raise _refused(f"the GPUs cannot be distinguished: {error}") from None
    if len(specs) > len(cards):
        noun = "GPU is" if len(cards) == 1 else "GPUs are"
        raise pytest.UsageError(
            f"perfsuite: {len(specs)} workers, but {len(cards)} {noun} visible, and tests measured in "
            f"parallel on one device disturb each other; use -n {len(cards) if len(cards) > 1 else 0}"
        )
    return Cards(kind.visible_variable, cards[: len(specs)])


def _refused(why: str) -> pytest.UsageError:
    return pytest.UsageError(f"perfsuite: {why}; {_ALONE}")


class ControllerHooks:
    """The process that starts the workers: assign the cards, collect the results."""

    def __init__(self, ledger: Ledger, cards: Cards) -> None:
        self._ledger = ledger
        self._cards = cards
        self._order: dict[str, int] = {}

    def pytest_report_header(self) -> str:
        """Return the line that lists the workers' GPUs."""
        return f"perfsuite: one worker per GPU: {', '.join(self._cards.names)}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Set each worker's card in its environment, so that it is set before any conftest loads torch."""
        for spec, card in zip(specs, self._cards.names, strict=True):
            spec.env[self._cards.variable] = card  # a worker that replaces a crashed one gets the same

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker its card, and how the run was started."""
        invocation = self._ledger.config.invocation_params
        node.workerinput[WORKER_KEY] = {
            "variable": self._cards.variable,
            "card": node.gateway.spec.env[self._cards.variable],
            "arguments": [str(word) for word in invocation.args],
            "folder": str(invocation.dir),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Record which tests are selected, and their order."""
        self._ledger.selected.update(ids)
        self._order = {test: index for index, test in enumerate(ids)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's result out of its report."""
        text = report.__dict__.pop(_REPORTED, None)
        if text is not None:
            self._add(text, report.node, report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the final output of a worker; a card that was not free in time stops the run."""
        output = getattr(node, "workeroutput", {})
        if BUSY in output:
            raise pytest.UsageError(f"perfsuite: {output[BUSY]}")
        if WORKER_KEY in output:
            self._ledger.collected.update(output[WORKER_KEY]["collected"])
            self._add(output[WORKER_KEY]["carried"], node, "")

    @pytest.hookimpl(tryfirst=True)  # before the table and the files are written
    def pytest_sessionfinish(self) -> None:
        """Sort the results by the order of the tests, whichever worker was faster."""
        results, order = self._ledger.results, self._order
        for test in sorted(results, key=lambda test: order.get(test, len(order))):
            results[test] = results.pop(test)

    def _add(self, text: str, node: Any, test: str) -> None:
        received, ledger = (
            unpack_from(text, self._cards.names.index(node.workerinput[WORKER_KEY]["card"])),
            self._ledger,
        )
        ledger.environments.update(received.environments)
        ledger.benchmarked = max(ledger.benchmarked, received.benchmarked)
        if received.result is not None:
            ledger.results[test] = received.result
            ledger.lines[test] = received.line or 1
            ledger.params[test] = dict(received.params or {})


class WorkerHooks:
    """A worker: send every result as soon as its test is over, so that a later crash loses none."""

    def __init__(self, run: PerfRun) -> None:
        self._run = run
        self._ledger = run.ledger

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Attach the result to the report, which is sent to the controller."""
        if report.when != "call":
            return
        test, ledger = report.nodeid, self._ledger
        worker_result = WorkerResult(
            ledger.results.get(test),
            ledger.environments,
            ledger.lines.get(test),
            plain(ledger.params.get(test, {})),
            ledger.benchmarked,
        )
        setattr(report, _REPORTED, pack(worker_result))

    def pytest_sessionfinish(self) -> None:
        """Send the collected tests and the environment, even if nothing was measured."""
        self._run.environment(self._run.device)
        output: dict[str, Any] = self._ledger.config.workeroutput  # type: ignore[attr-defined]
        output[WORKER_KEY] = {
            "collected": sorted(self._ledger.collected),
            "carried": pack(
                WorkerResult(None, self._ledger.environments, benchmarked=self._ledger.benchmarked)
            ),
        }
