"""Which hooks a measuring run gets: those of a run by a person, or of a process another run started."""

import pytest

from perfsuite.answering import Answering, take_request
from perfsuite.options import given
from perfsuite.running import PerfRun


def cast_roles(config: pytest.Config) -> PerfRun:
    """Register the hooks this process needs and return the run."""
    request = take_request()
    hooks: dict[str, object] = {}
    if request is None:
        run = PerfRun.from_config(config)
        hooks |= _persons_hooks(run)
    elif request["role"] == "arm":
        from perfsuite.arm import Arm

        arm = Arm(request)
        run = PerfRun.from_config(config, is_judging=False, conduct=arm.conduct)
        hooks["perfsuite-arm"] = arm
    else:
        run = PerfRun.from_config(config, is_judging=False)
        hooks["perfsuite-answering"] = Answering(run.ledger, request)
    for name, hook in {"perfsuite-run": run, **hooks}.items():
        config.pluginmanager.register(hook, name)
    return run


def _persons_hooks(run: PerfRun) -> dict[str, object]:
    options = run.ledger.options
    if options.against:
        from perfsuite.against_run import Against

        said = ("save_baseline", "perf_json", "perf_history")
        if refused := [f"--{name.replace('_', '-')}" for name in said if given(run.ledger.config, name)]:
            raise pytest.UsageError(
                f"perfsuite: --against stores and writes nothing; run {' and '.join(refused)} by itself"
            )
        return {"perfsuite-against": Against(run.ledger, run.device)}
    from perfsuite.confirming import Confirming
    from perfsuite.ending import Ending

    return {"perfsuite-confirming": Confirming(run.ledger), "perfsuite-ending": Ending(run.ledger)}
