"""`python -m perfsuite`: what a machine can measure and detect, what causes mean, how a history changed."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfsuite.errors import PerfsuiteError

_INSTALLED = Path(__file__).parents[1] / "documents"  # where a wheel puts the documents
_IN_REPOSITORY = Path(__file__).parents[2] / "docs"
# Topics that are not causes: their document and section.
_ELSEWHERE = {
    "invalid": ("gpu-runners.md", "What makes a measurement invalid"),
    "crowded": ("verdicts.md", "A CPU that others use too"),
    "baseline": ("verdicts.md", "A stored baseline"),
    "against": ("verdicts.md", "Against a git ref"),
}


def explain(topic: str) -> str:
    """Return the manual's section about a topic, or raise an error that lists all topics."""
    causes = _sections("diagnosis.md", "###")
    if topic in _ELSEWHERE:
        name, title = _ELSEWHERE[topic]
        return _sections(name, "##")[title]
    if topic not in causes:
        known = ", ".join([*causes, *_ELSEWHERE])
        raise PerfsuiteError(f"the manual has nothing about {topic!r}; known: {known}")
    return causes[topic]


def _sections(name: str, level: str) -> dict[str, str]:
    """Return a document's sections by title."""
    text = _document(name)
    parts = re.split(rf"^(?=#{{2,{len(level)}}} )", text, flags=re.MULTILINE)
    return {part.splitlines()[0].lstrip("# "): part.strip() for part in parts if part.startswith(f"{level} ")}


def _document(name: str) -> str:
    for folder in (_INSTALLED, _IN_REPOSITORY):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise PerfsuiteError(f"{name} was not installed with perfsuite; install it again")


@dataclass(frozen=True)
class Command:
    """A command: its help, its arguments, its function."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], str | int]  # what to print, or the exit status of what was run


def _no_arguments(_: argparse.ArgumentParser) -> None:
    """Add nothing."""


def _doctor(_: argparse.Namespace) -> str:
    from perfsuite.commands.doctor import diagnose

    return "\n".join(diagnose())


def _calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name of the card's entry, used as --perf-device=model:NAME")
    parser.add_argument("--device", default="cpu", help="device to measure: cpu (default), cuda or cuda:N")
    parser.add_argument("--sheet", help="the table's card to correct; needed for CUDA (a10, t4, …)")


def _calibrate(arguments: argparse.Namespace) -> str:
    from perfsuite.devices.model.calibrate import calibrate_card, calibrate_cpu, write
    from perfsuite.devices.model.cards import find_card
    from perfsuite.devices.open import open_device
    from perfsuite.errors import DeviceMissing

    root = Path.cwd()
    if arguments.device == "cpu":
        card = calibrate_cpu(arguments.name)
    elif arguments.sheet is None:
        raise DeviceMissing("name the card's sheet with --sheet: the measurements correct it")
    else:
        card = calibrate_card(
            find_card(arguments.sheet, root), arguments.name, open_device(arguments.device, root)
        )
    path = write(card, root)
    warning = (
        "; its figures were predicted on an emulated card, nothing was measured" if card.is_emulated else ""
    )
    return f"{card.title} written to {path.name}{warning}; use it with --perf-device=model:{card.name}"


def _self_test_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", default="10 min", help="how long it may take (default: 10 min)")
    parser.add_argument("--device", default="auto", help="device to prove the gate on (default: auto)")


def _self_test(arguments: argparse.Namespace) -> str:
    from perfsuite.commands.selftest import self_test
    from perfsuite.units import Unit, parse

    try:
        seconds = parse(arguments.budget, Unit.SECONDS)
    except ValueError as error:
        raise PerfsuiteError(f"--budget: {error}") from None
    return self_test(seconds, arguments.device, lambda text: print(f"{text} …", file=sys.stderr, flush=True))


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", help="a cause as a failure names it, such as data-bound; or invalid")


def _explain(arguments: argparse.Namespace) -> str:
    return explain(arguments.topic)


def _trend_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the file that --perf-history appends to")


def _trend(arguments: argparse.Namespace) -> str:
    from perfsuite.commands.trend import render, trends
    from perfsuite.remember import history

    return render(trends(history.load(arguments.file)))


def _check_patch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patch", type=Path, help="the file that pytest --save-baseline --perf-patch wrote")
    parser.add_argument("--baseline-dir", default="baselines", help="the only folder that it may change")
    parser.add_argument("--apply", action="store_true", help="write the checked baselines")


def _check_patch(arguments: argparse.Namespace) -> str:
    from pathlib import PurePosixPath

    from perfsuite.remember.patch import check_patch

    directory = PurePosixPath(arguments.baseline_dir)
    lines = check_patch(arguments.patch, directory, Path.cwd(), is_applied=arguments.apply)
    count = "1 baseline" if len(lines) == 1 else f"{len(lines)} baselines"
    return "\n".join([*lines, f"{count} {'written' if arguments.apply else 'well-formed'}"])


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "of", choices=("baseline", "readings"), help="a stored baseline, or --perf-json's file"
    )


def _schema(arguments: argparse.Namespace) -> str:
    import json

    from perfsuite.remember.schema import baseline_schema, readings_schema

    schema = baseline_schema() if arguments.of == "baseline" else readings_schema()
    return json.dumps(schema, indent=1)


def _emulate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("card", help="a card of the table (a10, t4, …), or several of one: 4xa10")
    parser.add_argument(
        "--counts", action="store_true", help="print what was launched, copied and waited for"
    )
    parser.usage = f"{parser.prog} [-h] [--counts] CARD -- COMMAND …"


def _emulate(arguments: argparse.Namespace) -> int:
    from perfsuite.commands.emulate import emulate

    return emulate(arguments.card, arguments.behind, has_counts=arguments.counts)


COMMANDS = {
    "doctor": Command(
        "list what can be measured on the GPUs of this machine; fails if there is none",
        _no_arguments,
        _doctor,
    ),
    "calibrate": Command(
        "measure some operators on this machine's device and write its entry for --perf-device=model:NAME",
        _calibrate_arguments,
        _calibrate,
    ),
    "emulate": Command(
        "run any command on an emulated GPU: torch's CUDA build without a card",
        _emulate_arguments,
        _emulate,
    ),
    "self-test": Command(
        "measure how often the gate raises false alarms on this machine, and which slowdowns it finds",
        _self_test_arguments,
        _self_test,
    ),
    "explain": Command("print what the manual says about a cause", _explain_arguments, _explain),
    "trend": Command(
        "find the commits at which a history's timings changed",
        _trend_arguments,
        _trend,
    ),
    "check-patch": Command(
        "check an untrusted patch of new baselines; fails on anything other than baselines",
        _check_patch_arguments,
        _check_patch,
    ),
    "schema": Command("print the JSON Schema of baselines or readings", _schema_arguments, _schema),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser("python -m perfsuite", description=__doc__)
    chosen = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(chosen.add_parser(name, help=command.help))
    given = list(sys.argv[1:] if arguments is None else arguments)
    # What stands behind -- is another program's and none of ours to read.
    end = given.index("--") if given[:1] == ["emulate"] and "--" in given else len(given)
    parsed = parser.parse_args(given[:end])
    parsed.behind = given[end + 1 :]
    try:
        answer = COMMANDS[parsed.command].run(parsed)
        if isinstance(answer, int):
            return answer
        print(answer, flush=True)
    except PerfsuiteError as error:
        print(f"perfsuite: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has closed the pipe; Python would complain again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
