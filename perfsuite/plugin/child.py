"""The pytest hooks of a fresh process: measure the requested tests, judge nothing, return the figures."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfsuite.judge.validity import crowded
from perfsuite.plugin.ledger import Ledger
from perfsuite.processes.fresh import REQUEST
from perfsuite.records import Result
from perfsuite.remember.documents import rounds


def take_request() -> Mapping[str, Any] | None:
    """Return another process's request to this one; removed, so that no grandchild executes it too."""
    path = os.environ.pop(REQUEST, None)
    return None if path is None else dict(json.loads(Path(path).read_text(encoding="utf-8")))


class ChildHooks:
    """Run only the requested tests and write their readings to the answer file."""

    def __init__(self, ledger: Ledger, request: Mapping[str, Any]) -> None:
        self._ledger = ledger
        self._tests = set(request["tests"])
        self._answer = Path(request["answer"])

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect every other test."""
        others = [item for item in items if item.nodeid not in self._tests]
        items[:] = [item for item in items if item.nodeid in self._tests]
        config.hook.pytest_deselected(items=others)

    def pytest_sessionfinish(self) -> None:
        """Write the answer."""
        answer = {test: entry(result) for test, result in self._ledger.results.items()}
        self._answer.write_text(json.dumps(answer), encoding="utf-8")


def entry(result: Result) -> dict[str, Any]:
    """Return a test's readings as JSON values."""
    return {
        "error": result.error,
        "readings": {
            reading.name: {
                "values": dict(reading.figures),
                "invalid": [*reading.invalid, *crowded(reading)],
                "rounds": rounds(reading.rounds),
            }
            for reading in result.readings
        },
    }
