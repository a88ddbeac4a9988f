"""Register a process's hooks by its role: the user's run, a rank, a worker, a process of another run."""

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import pytest

from perfsuite.errors import PerfsuiteError
from perfsuite.plugin import xdist
from perfsuite.plugin.child import ChildHooks, take_request
from perfsuite.plugin.confirm import ConfirmHooks
from perfsuite.plugin.device_queue import QueueHooks
from perfsuite.plugin.finish import FinishHooks
from perfsuite.plugin.ledger import Ledger
from perfsuite.plugin.options import OPTIONS, given
from perfsuite.plugin.restart import ClosingHooks
from perfsuite.plugin.run import PerfRun
from perfsuite.plugin.settings import read_options
from perfsuite.processes.world import Place

if TYPE_CHECKING:
    from perfsuite.devices.ranks.group import Ranks


def register_hooks(config: pytest.Config) -> None:
    """Register the hooks of this process's role; a controller of pytest-xdist measures nothing itself."""
    if xdist.is_controller(config):
        _register(config, _controller_hooks(config))
        return
    request = take_request()
    place = _place()
    hooks: dict[str, object] = {}
    if place is not None:
        run = _rank_run(config, place, request, hooks)
    elif xdist.is_worker(config):
        xdist.restrict_to_card(config)
        run = PerfRun.from_config(config)
        confirm = ConfirmHooks(run.ledger, is_immediate=True)
        hooks |= {"perfsuite-worker": xdist.WorkerHooks(run), "perfsuite-confirm": confirm}
        hooks["perfsuite-queue"] = QueueHooks(run)
    elif request is None:
        run = PerfRun.from_config(config)
        hooks |= {"perfsuite-queue": QueueHooks(run), **_user_hooks(run)}
    elif request["role"] == "side":
        from perfsuite.plugin.against import SideHooks

        side = SideHooks(request)
        run = PerfRun.from_config(config, is_judging=False, run_blocks=side.run_blocks)
        hooks["perfsuite-side"] = side
    else:
        run = PerfRun.from_config(config, is_judging=False)
        hooks["perfsuite-child"] = ChildHooks(run.ledger, request)
    if run.device.lasts_a_session:
        hooks["perfsuite-closing"] = ClosingHooks(run.device)
    _register(config, {"perfsuite-run": run, **hooks})


def _place() -> Place | None:
    try:
        return Place.from_environment()
    except PerfsuiteError as error:
        raise pytest.UsageError(f"perfsuite: {error}") from None


def _rank_run(
    config: pytest.Config, place: Place, request: Mapping[str, Any] | None, hooks: dict[str, object]
) -> PerfRun:
    """Add the hooks that keep every rank in step; the first rank also judges, or answers a request."""
    from perfsuite.plugin.ranks import RankChildHooks, RankHooks

    if given(config, "against"):
        raise pytest.UsageError(
            "perfsuite: --against compares one process with another; run it without torchrun"
        )
    run = PerfRun.from_config(config, is_judging=place.is_first and request is None, place=place)
    hooks["perfsuite-rank"] = RankHooks(config, cast("Ranks", run.together))
    if request is not None:
        hooks["perfsuite-child"] = RankChildHooks(run, request)
    elif place.is_first:
        hooks |= _user_hooks(run)
    machines = run.together.gather(platform.node())
    if request is None and machines.index(platform.node()) == place.rank:
        hooks["perfsuite-queue"] = QueueHooks(run)  # one rank locks the devices for all ranks of its machine
    return run


def _register(config: pytest.Config, hooks: dict[str, object]) -> None:
    for name, hook in hooks.items():
        config.pluginmanager.register(hook, name)


def _controller_hooks(config: pytest.Config) -> dict[str, object]:
    options = read_options(config)
    ledger = Ledger(config, options)
    controller = xdist.ControllerHooks(ledger, xdist.assign_cards(config, options))
    return {"perfsuite-share": controller, "perfsuite-finish": FinishHooks(ledger)}


def _user_hooks(run: PerfRun) -> dict[str, object]:
    options = run.ledger.options
    if options.against:
        from perfsuite.plugin.against import AgainstHooks

        for option in OPTIONS:
            if option.conflict and given(run.ledger.config, option.ini):
                raise pytest.UsageError(
                    f"perfsuite: {option.flag} cannot be combined with --against: {option.conflict}; "
                    f"run {option.flag} by itself"
                )
        return {"perfsuite-against": AgainstHooks(run)}
    return {"perfsuite-confirm": ConfirmHooks(run.ledger), "perfsuite-finish": FinishHooks(run.ledger)}
