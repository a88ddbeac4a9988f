"""Which hooks a measuring run gets: those of a run by a person, or of a process another run started."""

import pytest

from perfsuite.answering import Answering, take_request
from perfsuite.confirming import Confirming
from perfsuite.ending import Ending
from perfsuite.running import PerfRun


def cast_roles(config: pytest.Config) -> PerfRun:
    """Register the hooks this process needs and return the run."""
    request = take_request()
    run = PerfRun.from_config(config, is_judging=request is None)
    hooks: dict[str, object] = {"perfsuite-run": run}
    if request is not None:
        hooks["perfsuite-answering"] = Answering(run.ledger, request)
    else:
        hooks["perfsuite-confirming"] = Confirming(run.ledger)
        hooks["perfsuite-ending"] = Ending(run.ledger)
    for name, hook in hooks.items():
        config.pluginmanager.register(hook, name)
    return run
