"""The plugin as every pytest run loads it: options, markers, fixtures; --perf loads the rest."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from perfsuite.plugin import options

if TYPE_CHECKING:
    from perfsuite.devices.cuda.monitor import GpuMonitor
    from perfsuite.diagnose.checklist import Checklist
    from perfsuite.plugin.fixture import Perf
    from perfsuite.plugin.run import PerfRun

_MARKERS = (
    "perf(min_samples_per_s=, min_utilization=, max_peak_memory=, max_step_time=, max_data_wait=, "
    "min_speedup=, min_scaling_efficiency=, max_rank_skew=, tolerance=, …): performance test, run by --perf; "
    "limits in human units. Example: "
    '@pytest.mark.perf(min_samples_per_s=2000, min_utilization="85 %", max_peak_memory="12 GiB")',
    "gpu: needs an accelerator; skipped with a reason if there is none. Example: pytest --perf -m gpu",
    "multi_gpu(n=2): needs n accelerators; a performance test is run by n processes, on a CPU too",
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the options; if another plugin declares one of them too, name it."""
    from argparse import ArgumentError

    from perfsuite.plugin import option_conflicts

    try:
        options.add_options(parser)
    except (ValueError, ArgumentError) as error:
        raise option_conflicts.conflict(pluginmanager, error) from error
    option_conflicts.check_duplicates(parser, pluginmanager)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser) -> Iterator[None]:
    """Restart pytest where its device needs that, and name a conftest that declares our options too."""
    from argparse import ArgumentError

    from perfsuite.plugin import option_conflicts

    if options.names_a_card(early_config):
        from perfsuite.plugin.restart import restart_for_device

        restart_for_device(early_config, options.early(early_config, "perf_device"))
    try:
        yield
    except (ValueError, ArgumentError) as error:
        raise option_conflicts.conflict(early_config.pluginmanager, error) from error
    option_conflicts.check_duplicates(parser, early_config.pluginmanager)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hook through which projects add devices."""
    from perfsuite.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(trylast=True)  # after the terminal reporter
def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and the hooks that measure only if they are enabled."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if options.is_enabled(config) and not config.option.help:
        from perfsuite.plugin.roles import register_hooks

        register_hooks(config)


@pytest.hookimpl(trylast=True)  # after -k and -m: deselected tests need no device
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reject wrong markers before anything runs, and skip tests that cannot run here."""
    from perfsuite.plugin import selection

    selection.check_markers(items)
    run = _run_of(config)
    for item in items:
        reason = selection.skip_reason(
            item,
            run.device_of(item) if run else None,
            is_enabled=run is not None,
            ranks=run.ranks if run else None,
        )
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    if run is not None:
        from perfsuite.plugin.ranks import for_ranks

        items[:] = [for_ranks(item, run) for item in items]


@pytest.fixture
def perf(request: pytest.FixtureRequest) -> "Perf":
    """Measure: perf(step, samples_per_step=64), perf.loop(loader, step), perf.compare(without=…, with_=…)."""
    run = _run_of(request.config)
    if run is None:
        pytest.skip("performance test: run with --perf")
    return cast("Perf", run.perf_of(request.node))  # never an Answer: ranks create their fixtures themselves


def _run_of(config: pytest.Config) -> "PerfRun | None":
    """Return the measuring run; None without --perf, and if only workers measure."""
    return cast("PerfRun | None", config.pluginmanager.get_plugin("perfsuite-run"))


@pytest.fixture
def gpu_monitor() -> "type[GpuMonitor]":
    """Monitor a GPU in any test: `with gpu_monitor() as gpu: …`, then `gpu.utilization.mean`."""
    from perfsuite.devices.cuda.monitor import GpuMonitor

    return GpuMonitor


@pytest.fixture
def training_checklist() -> "type[Checklist]":
    """Check a training's settings and a reading of it: `training_checklist(config, "cuda").before()`."""
    from perfsuite.diagnose.checklist import Checklist

    return Checklist
