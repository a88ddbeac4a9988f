"""The pytest hooks of a measuring run: the five verbs in order, one test after the other."""

from collections.abc import Iterator

import pytest

from perfsuite import baselines, benchmarks, selection
from perfsuite.collect import SecondStage, expect, parse_markers
from perfsuite.devices import Device, open_device
from perfsuite.ending import Ledger
from perfsuite.environment import Environment
from perfsuite.errors import DeviceMissing, PerfsuiteError
from perfsuite.judging import judge_test
from perfsuite.measure import Plan
from perfsuite.meter import Conduct, Perf
from perfsuite.noise import LEAST_SESSIONS
from perfsuite.progress import ProgressLine, open_terminal
from perfsuite.records import Expectation, Result, Verdict
from perfsuite.report import messages, terminal
from perfsuite.settings import Options, read_options
from perfsuite.validity import faults

METER = pytest.StashKey[Perf]()
EXPECTATION = pytest.StashKey[Expectation]()
_MAX_SECONDS = 10.0
_BRIEF_SECONDS = 0.5


class PerfRun:
    """One measuring session: its options, devices, and results so far."""

    def __init__(
        self,
        config: pytest.Config,
        options: Options,
        device: Device,
        *,
        is_judging: bool = True,
        conduct: Conduct | None = None,
    ) -> None:
        self._config = config
        self._is_judging = is_judging
        self._conduct = conduct
        self._options = options
        self.device = device
        self._devices = {options.settings({}).device: device}
        self.ledger = Ledger(config, options)
        self._terminal = open_terminal(config)  # now: during a test pytest holds the output back

    @classmethod
    def from_config(
        cls, config: pytest.Config, *, is_judging: bool = True, conduct: Conduct | None = None
    ) -> "PerfRun":
        """Refuse what cannot be measured honestly before anything is collected."""
        options = read_options(config)
        try:
            device = _open(config, options.settings({}).device)
            if options.save_baseline and options.patch_path is None:
                baselines.check_writable(options.baseline_dir)
        except PerfsuiteError as error:
            raise pytest.UsageError(f"perfsuite: {error}") from None
        return cls(config, options, device, is_judging=is_judging, conduct=conduct)

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
        threads = f", {facts.threads} threads" if facts.threads else ""
        return terminal.header(
            f"{self.device.name} ({facts.name}{threads})", facts.clock, f"{where} ({stored} stored)", key
        )

    @pytest.hookimpl(tryfirst=True)  # before -k and -m: a deselected test still exists
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note which tests there are."""
        self.ledger.collected = {item.nodeid for item in items}

    def meter(self, item: pytest.Item) -> Perf:
        """Collect what is expected of a test and return the object that measures it."""
        if METER not in item.stash:
            limits, said = parse_markers(item.iter_markers("perf"))
            settings = self._options.settings(said)
            try:
                device = self._device(settings.device)
                stored = baselines.find(self._options.baseline_dir, item.nodeid, self.environment(device))
            except PerfsuiteError as error:
                pytest.fail(str(error), pytrace=False)
            item.stash[EXPECTATION] = expect(
                limits,
                settings,
                stored=stored.values,
                conditions=stored.conditions,
                places=stored.places,
                match=stored.match,
                match_reason=stored.reason,
                device_tolerances=device.tolerances,
                sessions=stored.sessions,
                second=SecondStage(self._options.confirm, self._options.family_error),
                before=stored.readings,
                environment=stored.environment.to_stored() if stored.environment else {},
            )
            min_seconds = device.min_seconds if settings.min_time is None else settings.min_time
            max_seconds = max(min_seconds, settings.max_time or _MAX_SECONDS)
            if self._conduct:  # the blocks are the measurement; this is for memory and counts
                min_seconds = max_seconds = _BRIEF_SECONDS
            plan = Plan(min_seconds, max_seconds, progress=self._progress())
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

    def _is_beside(self, expectation: Expectation) -> bool:
        """Tell whether references are needed: for a baseline's sessions, or by a limit made of them."""
        if self._conduct:
            return False
        limits = [*expectation.limits, *(one for stored in expectation.by_reading.values() for one in stored)]
        is_saving = self._options.save_baseline and self._options.sessions >= LEAST_SESSIONS
        return is_saving or not self._is_judging or any(limit.metric.is_relative for limit in limits)

    def device_of(self, item: pytest.Item) -> Device:
        """Return the device a test is to run on: its marker's, or the session's where that cannot be had."""
        _, said = parse_markers(item.iter_markers("perf"))
        try:
            return self._device(self._options.settings(said).device)
        except PerfsuiteError:
            return self.device  # the test itself will say why

    def _progress(self) -> ProgressLine:
        if self._terminal is None:
            return ProgressLine(None)
        return ProgressLine.behind(self._config.get_terminal_writer(), self._terminal)

    def pytest_unconfigure(self) -> None:
        """Close our way to the terminal."""
        if self._terminal is not None:
            self._terminal.close()

    def _device(self, name: str) -> Device:
        if name not in self._devices:
            device = _open(self._config, name)
            if hasattr(self._config, "workerinput") and not device.modelled:
                raise DeviceMissing(f"{name} is not this worker's own device; measure this test with -n 0")
            self._devices[name] = device
        return self._devices[name]

    @pytest.hookimpl(tryfirst=True)  # before the test's fixtures go
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Let the device forget the test, whatever became of it."""
        if METER in item.stash:
            item.stash[METER].close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Run the test, then judge all its readings at once; a missed limit fails the test itself."""
        with benchmarks.watched(item, self.device) as watched:
            try:
                yield
            except PerfsuiteError as error:
                self._finish(item, error=str(error))
                pytest.fail(str(error), pytrace=False)
            except (pytest.skip.Exception, KeyboardInterrupt):
                raise
            except BaseException as error:
                self._finish(item, error=repr(error))
                raise
        self.ledger.benchmarked += watched.is_measured
        if not selection.is_perf_test(item):
            return
        meter = self.meter(item)
        if watched.reading is not None:
            meter.kept.append((watched.reading, ()))
        result = self._finish(item)
        if self.ledger.is_suspect(result):
            return  # measured again in fresh processes before it may fail
        if result.is_failed:
            pytest.fail(messages.failure_text(result), pytrace=False)
        if result.invalid:
            _answer_invalid(result)

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

    def _verdicts(self, meter: Perf, expectation: Expectation) -> tuple[Verdict, ...]:
        is_strict = expectation.settings.strict and not self._options.save_baseline
        return judge_test(meter.kept, expectation, self.ledger.save_command() if is_strict else None)


def _answer_invalid(result: Result) -> None:
    """Do with a test that does not count what the user asked for."""
    text = messages.invalid_text(result)
    match result.expectation.settings.on_invalid:
        case "fail":
            pytest.fail(text, pytrace=False)
        case "skip":
            pytest.skip(text.splitlines()[0])
        # "warn" is told after the table: a Python warning would fail where warnings are errors.


def _open(config: pytest.Config, name: str) -> Device:
    offered: Device | None = config.hook.pytest_perf_device(config=config, name=name)
    return offered if offered is not None else open_device(name, config.rootpath)
