"""The pytest hooks of a measuring run: collect, measure and judge, one test after the other."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perfsuite.collect.limits import SecondStage, expect
from perfsuite.devices.open import open_for_rank
from perfsuite.devices.protocol import Device, Plan
from perfsuite.environment import Environment
from perfsuite.errors import DeviceMissing, PerfsuiteError
from perfsuite.judge.validity import faults, remarks
from perfsuite.judge.verdicts import judge_test
from perfsuite.noise import MIN_SESSIONS
from perfsuite.plugin import benchmark_fixture, selection
from perfsuite.plugin.fixture import BlockRunner, Perf
from perfsuite.plugin.ledger import EXPECTATION, PERF, Ledger
from perfsuite.plugin.screen import ProgressLine, open_terminal
from perfsuite.plugin.settings import Options, read_options
from perfsuite.processes.world import ALONE, Place, Together
from perfsuite.records import Expectation, Result, Settings, Verdict
from perfsuite.remember import files
from perfsuite.report import messages, terminal

if TYPE_CHECKING:
    from perfsuite.processes.ranks import Answer

_MAX_SECONDS = 10.0
_BRIEF_SECONDS = 0.5


class Devices:
    """Open each device once, by its name."""

    def __init__(self, config: pytest.Config, options: Options, place: Place | None) -> None:
        self._config = config
        self.together: Together = ALONE
        name = options.settings({}).device
        self.first = self._open(name, place)
        if place is not None:
            from perfsuite.devices.ranks.device import join_ranks

            self.first, self.together = join_ranks(place, self.first, options.rank_seconds)
        self._known = {name: self.first}

    def named(self, name: str) -> Device:
        """Return the device of that name, or raise an error if it cannot be used."""
        if name not in self._known:
            if self.together.size > 1:
                raise DeviceMissing(
                    f"{name}: ranks measure on one kind of device; choose it with --perf-device"
                )
            device = self._open(name, None)
            if hasattr(self._config, "workerinput") and not device.modelled:
                raise DeviceMissing(f"{name} is not this worker's device; measure this test with -n 0")
            self._known[name] = device
        return self._known[name]

    def of(self, name: str) -> Device:
        """Return the device of that name, or the session's if it cannot be used: the test reports why."""
        try:
            return self.named(name)
        except PerfsuiteError:
            return self.first

    def _open(self, name: str, place: Place | None) -> Device:
        device: object = self._config.hook.pytest_perf_device(config=self._config, name=name)
        if device is None:
            return open_for_rank(name, self._config.rootpath, place)
        if not isinstance(device, Device):
            raise DeviceMissing(
                f"{name}: pytest_perf_device returned a {type(device).__name__}, which is not a "
                "perfsuite.Device; derive its class from that"
            )
        return device


def raise_outcome(result: Result) -> None:
    """Fail a test that missed a limit; fail, skip or pass an invalid one, as --perf-on-invalid says."""
    if result.is_failed:
        pytest.fail(messages.failure_text(result), pytrace=False)
    if not result.invalid:
        return
    text = messages.invalid_text(result)
    match result.expectation.settings.on_invalid:
        case "fail":
            pytest.fail(text, pytrace=False)
        case "skip":
            pytest.skip(text.splitlines()[0])

        # "warn" is shown after the table: a Python warning would fail if warnings are errors.


class PerfRun:
    """One measuring session: its options, devices, and results so far."""

    def __init__(
        self,
        config: pytest.Config,
        options: Options,
        devices: Devices,
        *,
        is_judging: bool = True,
        run_blocks: BlockRunner | None = None,
    ) -> None:
        self.together = devices.together
        self._config = config
        self._is_judging = is_judging
        self._run_blocks = run_blocks
        self._options = options
        self.device = devices.first
        self._devices = devices
        self.ledger = Ledger(config, options)
        self._terminal = open_terminal(config)  # now, as pytest captures the output during a test

    @classmethod
    def from_config(
        cls,
        config: pytest.Config,
        *,
        is_judging: bool = True,
        run_blocks: BlockRunner | None = None,
        place: Place | None = None,
    ) -> "PerfRun":
        """Read the options and open the devices, reporting errors before anything is collected."""
        options = read_options(config)
        if place is not None and not place.is_one_machine:
            # No rank can start fresh processes on all machines.
            options = replace(options, sessions=1, confirm=0)
        try:
            devices = Devices(config, options, place)
            if options.save_baseline and options.patch_path is None and not config.option.collectonly:
                files.check_writable(options.baseline_dir)
        except PerfsuiteError as error:
            raise pytest.UsageError(f"perfsuite: {error}") from None
        return cls(config, options, devices, is_judging=is_judging, run_blocks=run_blocks)

    def environment(self, device: Device) -> Environment:
        """Return a device's environment, which is determined once."""
        environments = self.ledger.environments
        if device.name not in environments:
            environments[device.name] = Environment.from_device(
                device.facts(), self._config.rootpath, self._options.baseline_dir
            )
        return environments[device.name]

    def pytest_report_header(self) -> str:
        """Return the line with the device, its clock, and the baselines."""
        facts, environment = self.device.facts(), self.environment(self.device)
        stored = files.stored_text(self._options.baseline_dir, environment)
        folder = self.ledger.short_path(self._options.baseline_dir)
        noun = "thread" if facts.threads == 1 else "threads"
        threads = f", {facts.threads} {noun}" if facts.threads else ""
        return terminal.header(
            f"{self.device.name} ({facts.name}{threads})",
            facts.clock,
            f"{folder} ({stored})",
            environment.key,
        )

    @pytest.hookimpl(tryfirst=True)  # before -k and -m: a deselected test still exists
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Record which tests exist."""
        self.ledger.collected = {item.nodeid for item in items}

    def perf_of(self, item: pytest.Item) -> "Perf | Answer":
        """Collect the expectation of a test and return the object that measures it."""
        if PERF not in item.stash:
            try:
                device = self._devices.named(self._settings(item).device)
                expected = item.stash[EXPECTATION] = self._expect(item, device)
            except PerfsuiteError as error:
                pytest.fail(str(error), pytrace=False)
            device.begin_test()
            item.stash[PERF] = Perf(
                device,
                self._plan(device, expected),
                faults=lambda reading: faults(reading, expected.baseline),
                remarks=lambda reading: remarks(reading, expected.baseline),
                cooldown_seconds=expected.settings.cooldown,
                run_blocks=self._run_blocks,
            )
        return item.stash[PERF]

    def _plan(self, device: Device, expected: Expectation) -> Plan:
        settings, options = expected.settings, self._options
        min_seconds = device.min_seconds if settings.min_time is None else settings.min_time
        max_seconds = max(min_seconds, settings.max_time or _MAX_SECONDS)
        if self._run_blocks:  # the blocks give the timings; this measures only memory and counts
            min_seconds = max_seconds = _BRIEF_SECONDS
        # References are needed for a baseline's sessions, and for limits made from them.
        is_saving = options.save_baseline and options.sessions >= MIN_SESSIONS
        needs_references = not self._is_judging or is_saving or expected.needs_references
        is_alone = not self._run_blocks and self.together.size == 1
        return Plan(
            min_seconds,
            max_seconds,
            progress=ProgressLine.behind(self._config, self._terminal),
            together=self.together,
            with_references=is_alone and needs_references,
            needs_utilization=any(limit.metric.needs_series for limit in expected.limits),
        )

    @property
    def ranks(self) -> int | None:
        """Return how many processes torchrun started, None if it did not start this one."""
        return self.together.size if self.together.size > 1 else None

    @property
    def is_side(self) -> bool:
        """Return whether this process is a side of --against, controlled by another process."""
        return self._run_blocks is not None

    def take(self, item: pytest.Item, answer: "Answer") -> None:
        """Take the readings of ranks as if they had been measured here."""
        if answer.environment is None or not answer.readings:
            return
        self.ledger.environments[answer.readings[0].device] = answer.environment
        device = self._devices.named(self._settings(item).device)
        item.stash[PERF] = answer
        item.stash[EXPECTATION] = self._expect(item, device, answer.environment)

    def _expect(
        self, item: pytest.Item, device: Device, environment: Environment | None = None
    ) -> Expectation:
        """Combine the limits of a test's markers with its baseline."""
        options, environment = self._options, environment or self.environment(device)
        return expect(
            selection.marker_values(item).limits,
            self._settings(item),
            files.find(options.baseline_dir, item.nodeid, environment),
            device.tolerances,
            SecondStage(options.confirm, options.family_error),
            compares_times=device.compares_times,
        )

    def _settings(self, item: pytest.Item) -> Settings:
        return self._options.settings(selection.marker_values(item).settings)

    def device_of(self, item: pytest.Item) -> Device:
        """Return the device a test runs on: its marker's, or the session's if that one cannot be used."""
        return self._devices.of(self._settings(item).device)

    def pytest_unconfigure(self) -> None:
        """Close our copy of the terminal."""
        if self._terminal is not None:
            self._terminal.close()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Close the measurement before the test's fixtures are torn down, and release its memory after."""
        perf = item.stash.get(PERF, None)
        with nullcontext() if perf is None else perf.closing():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Run the test, then judge all its readings; a missed limit fails the test itself."""
        is_benchmark = "benchmark" in getattr(item, "fixturenames", ())
        device = self.device_of(item)
        with benchmark_fixture.watched(item, device) if is_benchmark else nullcontext() as watched:
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
        self.ledger.benchmarked += watched is not None and watched.is_measured
        is_perf_test = selection.is_perf_test(item)
        if not is_perf_test and PERF not in item.stash:  # a test can request the fixture while it runs
            return
        perf = self.perf_of(item)
        if watched is not None and watched.reading is not None:
            perf.kept.append((watched.reading, ()))
        if is_benchmark and device.modelled and not perf.kept:
            pytest.skip(f"{device.name} has no clock for the benchmark fixture; measure with perf(step)")
        result = self._finish(item)
        if is_perf_test and self.ledger.is_suspect(result):
            return  # measured again in fresh processes before it may fail
        raise_outcome(result)

    def _finish(self, item: pytest.Item, error: str = "") -> Result:
        perf, expectation = item.stash.get(PERF, None), item.stash.get(EXPECTATION, Expectation())
        verdicts: tuple[Verdict, ...] = ()
        if perf is not None and self._is_judging and not error:
            is_strict = expectation.settings.strict and not self._options.save_baseline
            save_command = self.ledger.save_command() if is_strict else None
            verdicts = judge_test(perf.kept, expectation, save_command)
        result = Result(item.nodeid, expectation, perf.readings if perf else (), verdicts, error)
        if self._terminal is not None:
            ProgressLine.behind(self._config, self._terminal).clear()
        if result.readings or result.is_failed:
            self.ledger.results[item.nodeid] = result
            self.ledger.lines[item.nodeid] = (item.location[1] or 0) + 1
            self.ledger.params[item.nodeid] = dict(getattr(getattr(item, "callspec", None), "params", {}))
            item.user_properties.extend(messages.properties(result))
        return result
