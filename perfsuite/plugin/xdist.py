"""The pytest hooks under pytest-xdist: one worker for each GPU, and one process that reports for all."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from perfsuite.devices.cuda.physical import cards_to_share
from perfsuite.errors import PerfsuiteError
from perfsuite.plugin.carrying import Carried, pack, unpack
from perfsuite.plugin.device_queue import BUSY
from perfsuite.plugin.finish import Ledger
from perfsuite.plugin.run import PerfRun
from perfsuite.plugin.settings import Options
from perfsuite.processes.fresh import Command, without_workers
from perfsuite.report.machine import plain

_KEY, _REPORTED = "perfsuite", "perfsuite_carried"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALONE = "run --perf without pytest-xdist (-n 0)"


def is_sharing(config: pytest.Config) -> bool:
    """Tell whether this process leaves the tests to workers of pytest-xdist."""
    option = config.option
    is_spread = getattr(option, "dist", "no") != "no" and bool(getattr(option, "tx", None))
    return is_spread and not option.collectonly and not is_worker(config)


def is_worker(config: pytest.Config) -> bool:
    """Tell whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def own_card(config: pytest.Config) -> None:
    """Let this worker see no other card than its own; before torch looks."""
    told = config.workerinput.get(_KEY)  # type: ignore[attr-defined]
    if told is None:
        raise pytest.UsageError(f"perfsuite: this worker was not told which GPU is its own; {_ALONE}")
    os.environ[_VISIBLE] = told["card"]


def command_of(config: pytest.Config) -> Command:
    """Return how the run was started; a worker knows it from the process that started it."""
    told = getattr(config, "workerinput", {}).get(_KEY)
    if told is None:
        return Command.from_config(config)
    has_cache = config.pluginmanager.hasplugin("cacheprovider")
    given = Command.from_given(without_workers(told["arguments"]), told["folder"], has_cache=has_cache)
    return replace(given, arguments=(*given.arguments, "-n", "0"))  # an ini file may say -n too


def share_out(config: pytest.Config, options: Options) -> tuple[str, ...]:
    """Return each worker's card, or refuse what cannot be measured honestly."""
    from xdist.workermanage import parse_tx_spec_config

    device = options.settings({}).device
    if device == "auto":
        from perfsuite.devices.cuda.device import available_count

        device = "cuda" if available_count() else "cpu"
    specs = parse_tx_spec_config(config)
    if device != "cuda":
        raise _refused(f"tests measured in parallel on one device ({device}) disturb each other")
    if options.save_baseline or options.against:
        asked = "--against" if options.against else "--save-baseline"
        raise _refused(f"{asked} measures in fresh processes, one after the other")
    if config.option.dist == "each" or any(not spec.startswith("popen") for spec in specs):
        raise _refused("its workers share out the GPUs of this machine, each test to one of them")
    try:
        cards = cards_to_share(os.environ)
    except PerfsuiteError as error:
        raise _refused(f"the GPUs cannot be told apart: {error}") from None
    if len(specs) > len(cards):
        noun = "GPU is" if len(cards) == 1 else "GPUs are"
        raise pytest.UsageError(
            f"perfsuite: {len(specs)} workers, but {len(cards)} {noun} visible, and tests measured in "
            f"parallel on one device disturb each other; use -n {len(cards) if len(cards) > 1 else 0}"
        )
    return cards[: len(specs)]


def _refused(why: str) -> pytest.UsageError:
    return pytest.UsageError(f"perfsuite: {why}; {_ALONE}")


class Sharing:
    """The process that starts the workers: hand out the cards, gather what comes back."""

    def __init__(self, ledger: Ledger, cards: Sequence[str]) -> None:
        self._ledger = ledger
        self._cards = list(cards)
        self._order: dict[str, int] = {}

    def pytest_report_header(self) -> str:
        """Say who measures where."""
        return f"perfsuite: one worker per GPU: {', '.join(self._cards)}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """Put each card into its worker's environment: it is there before any conftest loads torch."""
        for spec, card in zip(specs, self._cards, strict=True):
            spec.env[_VISIBLE] = card  # a worker that replaces a crashed one gets the same

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker its card, and how the run was started."""
        given = self._ledger.config.invocation_params
        node.workerinput[_KEY] = {
            "card": node.gateway.spec.env[_VISIBLE],
            "arguments": [str(word) for word in given.args],
            "folder": str(given.dir),
        }

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note which tests are to run."""
        self._ledger.selected.update(ids)
        self._order = {test: place for place, test in enumerate(ids)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's result from its report."""
        text = report.__dict__.pop(_REPORTED, None)
        if text is not None:
            self._enter(text, report.node, report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker knows at its end; a card that was not free ends the run."""
        told = getattr(node, "workeroutput", {})
        if BUSY in told:
            raise pytest.UsageError(f"perfsuite: {told[BUSY]}")
        if _KEY in told:
            self._ledger.collected.update(told[_KEY]["collected"])
            self._enter(told[_KEY]["carried"], node, "")

    @pytest.hookimpl(tryfirst=True)  # before the table and the files are made
    def pytest_sessionfinish(self) -> None:
        """Put the results into the order of the tests, whoever was faster."""
        results, order = self._ledger.results, self._order
        for test in sorted(results, key=lambda test: order.get(test, len(order))):
            results[test] = results.pop(test)

    def _enter(self, text: str, node: Any, test: str) -> None:
        carried, ledger = unpack(text, self._cards.index(node.workerinput[_KEY]["card"])), self._ledger
        ledger.environments.update(carried.environments)
        ledger.benchmarked = max(ledger.benchmarked, carried.benchmarked)
        if carried.result is not None:
            ledger.results[test] = carried.result
            ledger.lines[test] = carried.line or 1
            ledger.params[test] = dict(carried.params or {})


class Handing:
    """A worker: hand every result on as soon as its test is over, so that a crash later loses none."""

    def __init__(self, run: PerfRun) -> None:
        self._run = run
        self._ledger = run.ledger

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the result to the report that carries it away."""
        if report.when != "call":
            return
        test, ledger = report.nodeid, self._ledger
        carried = Carried(
            ledger.results.get(test),
            ledger.environments,
            ledger.lines.get(test),
            plain(ledger.params.get(test, {})),
            ledger.benchmarked,
        )
        setattr(report, _REPORTED, pack(carried))

    def pytest_sessionfinish(self) -> None:
        """Tell which tests there are, and where this was, also where nothing was measured."""
        self._run.environment(self._run.device)
        output: dict[str, Any] = self._ledger.config.workeroutput  # type: ignore[attr-defined]
        output[_KEY] = {
            "collected": sorted(self._ledger.collected),
            "carried": pack(Carried(None, self._ledger.environments, benchmarked=self._ledger.benchmarked)),
        }
