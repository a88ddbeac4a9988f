"""Which hooks a measuring run gets: those of a run by a person, or of a process another run started."""

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.plugin import xdist as workers
from perfsuite.plugin.child import Answering, take_request
from perfsuite.plugin.confirm import Confirming
from perfsuite.plugin.device_queue import Queueing
from perfsuite.plugin.finish import Ending, Ledger
from perfsuite.plugin.options import given
from perfsuite.plugin.run import PerfRun
from perfsuite.plugin.settings import read_options
from perfsuite.processes.world import Place

if TYPE_CHECKING:
    from perfsuite.devices.ranks.group import Ranks


def cast_roles(config: pytest.Config) -> PerfRun | None:
    """Register the hooks this process needs and return the run, None where only workers measure."""
    if workers.is_sharing(config):
        _register(config, _sharing_hooks(config))
        return None
    request = take_request()
    place = _place()
    hooks: dict[str, object] = {}
    if place is not None:
        run = _on_a_rank(config, place, request, hooks)
    elif workers.is_worker(config):
        workers.own_card(config)
        run = PerfRun.from_config(config)
        confirming = Confirming(run.ledger, workers.command_of(config), is_at_once=True)
        hooks |= {"perfsuite-handing": workers.Handing(run), "perfsuite-confirming": confirming}
        hooks["perfsuite-queueing"] = Queueing(run)
    elif request is None:
        run = PerfRun.from_config(config)
        hooks |= {"perfsuite-queueing": Queueing(run), **_persons_hooks(run)}
    elif request["role"] == "arm":
        from perfsuite.plugin.arm import Arm

        arm = Arm(request)
        run = PerfRun.from_config(config, is_judging=False, conduct=arm.conduct)
        hooks["perfsuite-arm"] = arm
    else:
        run = PerfRun.from_config(config, is_judging=False)
        hooks["perfsuite-answering"] = Answering(run.ledger, request)
    _register(config, {"perfsuite-run": run, **hooks})
    return run


def _place() -> Place | None:
    try:
        return Place.from_environment()
    except PerfsuiteError as error:
        raise pytest.UsageError(f"perfsuite: {error}") from None


def _on_a_rank(
    config: pytest.Config, place: Place, request: Mapping[str, Any] | None, hooks: dict[str, object]
) -> PerfRun:
    """Give every rank the hooks that keep it in step, and the first one those that judge or answer."""
    from perfsuite.plugin.ranks import RankAnswering, RankRun

    if given(config, "against"):
        raise pytest.UsageError(
            "perfsuite: --against compares one process with another; run it without torchrun"
        )
    run = PerfRun.from_config(config, is_judging=place.is_first and request is None, place=place)
    hooks["perfsuite-rank"] = RankRun(config, cast("Ranks", run.together))
    if request is not None:
        hooks["perfsuite-answering"] = RankAnswering(run, request)
    elif place.is_first:
        hooks |= _persons_hooks(run)
    machines = run.together.gather(platform.node())
    if request is None and machines.index(platform.node()) == place.rank:
        hooks["perfsuite-queueing"] = Queueing(run)  # for all ranks of this machine, which wait for it
    return run


def _register(config: pytest.Config, hooks: dict[str, object]) -> None:
    for name, hook in hooks.items():
        config.pluginmanager.register(hook, name)


def _sharing_hooks(config: pytest.Config) -> dict[str, object]:
    options = read_options(config)
    ledger = Ledger(config, options)
    sharing = workers.Sharing(ledger, workers.share_out(config, options))
    return {"perfsuite-sharing": sharing, "perfsuite-ending": Ending(ledger)}


def _persons_hooks(run: PerfRun) -> dict[str, object]:
    options = run.ledger.options
    if options.against:
        from perfsuite.plugin.against import Against

        said = ("save_baseline", "perf_json", "perf_history")
        if refused := [f"--{name.replace('_', '-')}" for name in said if given(run.ledger.config, name)]:
            raise pytest.UsageError(
                f"perfsuite: --against stores and writes nothing; run {' and '.join(refused)} by itself"
            )
        return {"perfsuite-against": Against(run.ledger, run.device)}
    confirming = Confirming(run.ledger, workers.command_of(run.ledger.config))
    return {"perfsuite-confirming": confirming, "perfsuite-ending": Ending(run.ledger)}
