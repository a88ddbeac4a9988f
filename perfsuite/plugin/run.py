"""The pytest hooks of a measuring run: the five verbs in order, one test after the other."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perfsuite.collect.limits import parse_markers
from perfsuite.devices import Device
from perfsuite.environment import Environment
from perfsuite.errors import PerfsuiteError
from perfsuite.judge.judging import judge_test
from perfsuite.judge.validity import faults
from perfsuite.measure.step import Plan
from perfsuite.plugin import benchmark_fixture as benchmarks
from perfsuite.plugin import failing, selection
from perfsuite.plugin.expecting import expectation, wants_references
from perfsuite.plugin.finish import Ledger
from perfsuite.plugin.fixture import Perf
from perfsuite.plugin.keeping import Conduct
from perfsuite.plugin.opening import Devices
from perfsuite.plugin.screen import ProgressLine, open_terminal
from perfsuite.plugin.settings import Options, read_options
from perfsuite.processes.world import Place
from perfsuite.records import Expectation, Result, Verdict
from perfsuite.remember import files as baselines
from perfsuite.report import messages, terminal

if TYPE_CHECKING:
    from perfsuite.processes.ranks import Answer

METER: "pytest.StashKey[Perf | Answer]" = pytest.StashKey()
EXPECTATION = pytest.StashKey[Expectation]()
_MAX_SECONDS = 10.0
_BRIEF_SECONDS = 0.5


class PerfRun:
    """One measuring session: its options, devices, and results so far."""

    def __init__(
        self,
        config: pytest.Config,
        options: Options,
        devices: Devices,
        *,
        is_judging: bool = True,
        conduct: Conduct | None = None,
    ) -> None:
        self.together = devices.together
        self._config = config
        self._is_judging = is_judging
        self._conduct = conduct
        self._options = options
        self.device = devices.first
        self._devices = devices
        self.ledger = Ledger(config, options)
        self._terminal = open_terminal(config)  # now: during a test pytest holds the output back

    @classmethod
    def from_config(
        cls,
        config: pytest.Config,
        *,
        is_judging: bool = True,
        conduct: Conduct | None = None,
        place: Place | None = None,
    ) -> "PerfRun":
        """Refuse what cannot be measured honestly before anything is collected."""
        options = read_options(config)
        if place is not None and not place.is_one_machine:
            options = replace(options, sessions=1, confirm=0)  # no rank can start fresh ones on all machines
        try:
            devices = Devices(config, options, place)
            if options.save_baseline and options.patch_path is None and not config.option.collectonly:
                baselines.check_writable(options.baseline_dir)
        except PerfsuiteError as error:
            raise pytest.UsageError(f"perfsuite: {error}") from None
        return cls(config, options, devices, is_judging=is_judging, conduct=conduct)

    def environment(self, device: Device) -> Environment:
        """Describe a device's environment, once."""
        known = self.ledger.environments
        if device.name not in known:
            known[device.name] = Environment.from_device(
                device.facts(), self._config.rootpath, self._options.baseline_dir
            )
        return known[device.name]

    def pytest_report_header(self) -> str:
        """Say what is measured, how, and against what."""
        facts, key = self.device.facts(), self.environment(self.device).key
        stored = len(list((self._options.baseline_dir / key).rglob("*.json")))
        where = self.ledger.shown(self._options.baseline_dir)
        noun = "thread" if facts.threads == 1 else "threads"
        threads = f", {facts.threads} {noun}" if facts.threads else ""
        return terminal.header(
            f"{self.device.name} ({facts.name}{threads})", facts.clock, f"{where} ({stored} stored)", key
        )

    @pytest.hookimpl(tryfirst=True)  # before -k and -m: a deselected test still exists
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note which tests there are."""
        self.ledger.collected = {item.nodeid for item in items}

    def meter(self, item: pytest.Item) -> "Perf | Answer":
        """Collect what is expected of a test and return the object that measures it."""
        if METER not in item.stash:
            limits, said = parse_markers(item.iter_markers("perf"))
            settings = self._options.settings(said)
            try:
                device = self._devices.named(settings.device)
                item.stash[EXPECTATION] = expectation(
                    item.nodeid,
                    limits,
                    settings,
                    device.tolerances,
                    environment=self.environment(device),
                    options=self._options,
                )
            except PerfsuiteError as error:
                pytest.fail(str(error), pytrace=False)
            min_seconds = device.min_seconds if settings.min_time is None else settings.min_time
            max_seconds = max(min_seconds, settings.max_time or _MAX_SECONDS)
            if self._conduct:  # the blocks are the measurement; this is for memory and counts
                min_seconds = max_seconds = _BRIEF_SECONDS
            plan = Plan(min_seconds, max_seconds, progress=self._progress(), together=self.together)
            device.begin_test()
            kept = item.stash[EXPECTATION].conditions
            item.stash[METER] = Perf(
                device,
                plan,
                faults=lambda reading: faults(reading, kept.get(reading.name, {})),
                cooldown_seconds=settings.cooldown,
                is_beside=self._is_beside(item.stash[EXPECTATION]),
                conduct=self._conduct,
            )
        return item.stash[METER]

    @property
    def ranks(self) -> int | None:
        """Return how many processes torchrun started, None where it did not start this one."""
        return self.together.size if self.together.size > 1 else None

    @property
    def is_conducted(self) -> bool:
        """Tell whether another process says what is measured when."""
        return self._conduct is not None

    def take(self, item: pytest.Item, answer: "Answer") -> None:
        """Take the readings of ranks as if they had been measured here."""
        if answer.environment is None or not answer.readings:
            return
        self.ledger.environments[answer.readings[0].device] = answer.environment
        limits, said = parse_markers(item.iter_markers("perf"))
        settings = self._options.settings(said)
        tolerances = self._devices.named(settings.device).tolerances
        item.stash[METER] = answer
        item.stash[EXPECTATION] = expectation(
            item.nodeid, limits, settings, tolerances, environment=answer.environment, options=self._options
        )

    def _is_beside(self, expectation: Expectation) -> bool:
        """Tell whether the step is measured beside references as well."""
        is_alone = not self._conduct and self.together.size == 1
        return is_alone and (not self._is_judging or wants_references(expectation, self._options))

    def device_of(self, item: pytest.Item) -> Device:
        """Return the device a test is to run on: its marker's, or the session's where that cannot be had."""
        return self._devices.of(self._options.settings(parse_markers(item.iter_markers("perf"))[1]).device)

    def _progress(self) -> ProgressLine:
        if self._terminal is None:
            return ProgressLine(None)
        return ProgressLine.behind(self._config.get_terminal_writer(), self._terminal)

    def pytest_unconfigure(self) -> None:
        """Close our way to the terminal."""
        if self._terminal is not None:
            self._terminal.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Let the device forget the test, whatever became of it: before its fixtures go, and after them."""
        meter = item.stash.get(METER, None)
        if meter is not None:
            meter.close()
        try:
            return (yield)
        finally:
            if meter is not None:
                meter.release()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Run the test, then judge all its readings at once; a missed limit fails the test itself."""
        with benchmarks.watched(item, self.device) as watched:
            try:
                yield
            except PerfsuiteError as error:
                self._finish(item, error=str(error))
                raise pytest.fail.Exception(str(error), pytrace=False) from None
            except (pytest.skip.Exception, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._finish(item, error=repr(error))
                raise
        self.ledger.benchmarked += watched.is_measured
        is_known = selection.is_perf_test(item)
        if not is_known and METER not in item.stash:  # a fixture can be asked for while a test runs
            return
        meter = self.meter(item)
        if watched.reading is not None:
            self.environment(self.device)  # a marker's device is not the one that was watched
            meter.kept.append((watched.reading, ()))
        result = self._finish(item)
        if is_known and self.ledger.is_suspect(result):
            return  # measured again in fresh processes before it may fail
        failing.answer(result)

    def _finish(self, item: pytest.Item, error: str = "") -> Result:
        meter, expectation = item.stash.get(METER, None), item.stash.get(EXPECTATION, Expectation())
        result = Result(
            item.nodeid,
            expectation,
            meter.readings if meter else (),
            () if error or meter is None or not self._is_judging else self._verdicts(meter, expectation),
            error,
        )
        self._progress().clear()
        if result.readings or result.is_failed:
            self.ledger.results[item.nodeid] = result
            self.ledger.lines[item.nodeid] = (item.location[1] or 0) + 1
            self.ledger.params[item.nodeid] = dict(getattr(getattr(item, "callspec", None), "params", {}))
            item.user_properties.extend(messages.properties(result))
        return result

    def _verdicts(self, meter: "Perf | Answer", expectation: Expectation) -> tuple[Verdict, ...]:
        is_strict = expectation.settings.strict and not self._options.save_baseline
        return judge_test(meter.kept, expectation, self.ledger.save_command() if is_strict else None)
