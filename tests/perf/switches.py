"""The suite's own options: what to sabotage, how many steps to profile, which training, where claims go."""

from typing import Any

import pytest

from tests.perf.catalogue import CATALOGUE


def add_switches(parser: pytest.Parser) -> None:
    """Declare the options of the suite in tests/perf."""
    group = parser.getgroup("perf suite", "the optimization suite in tests/perf")
    group.addoption(
        "--perf-sabotage",
        metavar="O18[:half]",
        type=_optimization,
        help="turn this optimization off where its contract says it is on (all: every one in its own "
        "contract), wholly or in half of the steps, to see the contract fail",
    )
    group.addoption(
        "--perf-without-figures",
        action="store_true",
        help="do not hold a card's busy share, samples/s and memory against limits.toml: to derive them anew",
    )
    group.addoption(
        "--perf-steps", metavar="N", type=_steps, default=200, help="steps the routine check profiles (200)"
    )
    group.addoption(
        "--perf-config",
        metavar="YAML",
        help="training that routine check and checklist look at (the default)",
    )
    group.addoption(
        "--perf-claims", metavar="PATH", help="write what the scenarios found beside the documents' claims"
    )


def _optimization(text: str) -> str:
    """Accept a number of the catalogue, or all; «:half» behind it takes away half."""
    number, colon, amount = text.partition(":")
    if number != "all" and number not in CATALOGUE:
        raise _refused(f"{text!r} is no optimization; name one of {', '.join(CATALOGUE)}, or all")
    if colon and amount != "half":
        raise _refused(f"{text!r}: an optimization is lost wholly ({number}) or by half ({number}:half)")
    return text


def sabotage_of(asked: str | None, number: str) -> str:
    """Return how much of an optimization the command line takes away: "whole", "half", or nothing."""
    which, _, amount = (asked or "").partition(":")
    return (amount or "whole") if which in ("all", number) else ""


def _steps(text: str) -> int:
    """Accept a whole number of at least 10: shares of fewer steps say nothing."""
    if not text.isdecimal() or int(text) < 10:
        raise _refused(f"{text!r} is no number of steps; give a whole number of at least 10")
    return int(text)


def _refused(why: str) -> Any:
    from argparse import ArgumentTypeError

    return ArgumentTypeError(why)
