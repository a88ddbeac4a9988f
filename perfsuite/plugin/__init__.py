"""What pytest loads on every run: options, markers, the perf fixture; the rest comes with --perf."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from perfsuite.plugin import options

if TYPE_CHECKING:
    from perfsuite.devices.cuda.monitor import GpuMonitor
    from perfsuite.diagnose.checklist import Checklist
    from perfsuite.plugin.fixture import Perf
    from perfsuite.plugin.run import PerfRun

RUN: "pytest.StashKey[PerfRun]" = pytest.StashKey()

_MARKERS = (
    "perf(min_samples_per_s=, min_utilization=, max_peak_memory=, max_step_time=, max_data_wait=, "
    "min_speedup=, min_scaling_efficiency=, max_rank_skew=, tolerance=, …): performance test, run by --perf; "
    "limits in human units. Example: "
    '@pytest.mark.perf(min_samples_per_s=2000, min_utilization="85 %", max_peak_memory="12 GiB")',
    "gpu: needs an accelerator; skipped with a reason where there is none. Example: pytest --perf -m gpu",
    "multi_gpu(n=2): needs n accelerators; a performance test is run by n processes, on a CPU too",
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the options; where another plugin owns one, say who."""
    from argparse import ArgumentError

    from perfsuite.plugin import option_conflicts as conflicts

    try:
        options.add_options(parser)
    except (ValueError, ArgumentError) as error:
        raise conflicts.conflict(pluginmanager, error) from error
    conflicts.check_duplicates(parser, pluginmanager)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Iterator[None]:
    """Say who else declares one of our options: pytest itself does not."""
    from argparse import ArgumentError

    from perfsuite.plugin import option_conflicts as conflicts

    try:
        yield
    except (ValueError, ArgumentError) as error:
        raise conflicts.conflict(early_config.pluginmanager, error) from error
    conflicts.check_duplicates(parser, early_config.pluginmanager)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Offer the door for further devices."""
    from perfsuite.plugin import hookspecs as hooks

    pluginmanager.add_hookspecs(hooks)


@pytest.hookimpl(trylast=True)  # the terminal must be there
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the measuring run only where it was asked for."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if options.is_enabled(config) and not config.option.help:
        from perfsuite.plugin.roles import cast_roles

        run = cast_roles(config)
        if run is not None:
            config.stash[RUN] = run


@pytest.hookimpl(trylast=True)  # after -k and -m: what is not selected needs no device
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse wrong markers before anything runs, and skip what cannot run here."""
    from perfsuite.plugin import selection

    selection.check_markers(items)
    run = config.stash.get(RUN, None)
    for item in items:
        reason = selection.skip_reason(
            item,
            run.device_of(item) if run else None,
            is_on=run is not None,
            ranks=run.ranks if run else None,
        )
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    if run is not None:
        from perfsuite.processes.ranks import for_ranks

        items[:] = [for_ranks(item, run) for item in items]


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> "Perf":
    """Measure: perf(step, samples_per_step=64), perf.loop(loader, step), perf.compare(without=…, with_=…)."""
    run = request.config.stash.get(RUN, None)
    if run is None:
        pytest.skip("performance test: run with --perf")
    return cast("Perf", run.meter(request.node))  # ranks elsewhere make no fixtures here


@pytest.fixture
def gpu_monitor() -> "type[GpuMonitor]":
    """Watch a GPU in any test: `with gpu_monitor() as seen: …`, then `seen.utilization.mean`."""
    from perfsuite.devices.cuda.monitor import GpuMonitor

    return GpuMonitor


@pytest.fixture
def training_checklist() -> "type[Checklist]":
    """Check a training's settings and a reading of it: `training_checklist(config, "cuda").before()`."""
    from perfsuite.diagnose.checklist import Checklist

    return Checklist
