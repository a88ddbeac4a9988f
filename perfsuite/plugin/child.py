"""The pytest hooks of a fresh process: measure what is asked for, judge nothing, answer with figures."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfsuite.judge.validity import crowded
from perfsuite.metrics import METRICS
from perfsuite.plugin.finish import Ledger
from perfsuite.processes.fresh import REQUEST
from perfsuite.records import Result
from perfsuite.remember.documents import rounds


def take_request() -> Mapping[str, Any] | None:
    """Return what another process asks of this one; taken once, so that no grandchild obeys it too."""
    path = os.environ.pop(REQUEST, None)
    return None if path is None else dict(json.loads(Path(path).read_text(encoding="utf-8")))


class Answering:
    """Run only what was asked for and write down what was found."""

    def __init__(self, ledger: Ledger, request: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self._tests = set(request["tests"])
        self._answer = Path(request["answer"])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out every other test."""
        others = [item for item in items if item.nodeid not in self._tests]
        items[:] = [item for item in items if item.nodeid in self._tests]
        config.hook.pytest_deselected(items=others)

    def pytest_sessionfinish(self) -> None:
        """Write the answer."""
        answer = {test: entry(result) for test, result in self._ledger.results.items()}
        self._answer.write_text(json.dumps(answer), encoding="utf-8")


def entry(result: Result) -> dict[str, Any]:
    """Return a test's readings as plain numbers."""
    return {
        "error": result.error,
        "readings": {
            reading.name: {
                "values": {
                    metric.name: value
                    for metric in METRICS.values()
                    if (value := reading.value(metric)) is not None
                },
                "invalid": [*reading.invalid, *crowded(reading)],
                "rounds": rounds(reading.rounds),
            }
            for reading in result.readings
        },
    }
