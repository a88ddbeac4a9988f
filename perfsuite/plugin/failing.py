"""Let pytest know what became of a test: the one place where a result turns into a failure or a skip."""

import pytest

from perfsuite.records import Result
from perfsuite.report import messages


def answer(result: Result) -> None:
    """Fail a test that missed a limit, and do with one that does not count what the user asked for."""
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
        # "warn" is told after the table: a Python warning would fail where warnings are errors.
