"""Commands beside pytest: what a machine can measure and promise, what causes mean, what a history tells."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfsuite.errors import PerfsuiteError


@dataclass(frozen=True)
class Command:
    """A command: what it is for, what it takes, what it does."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], str]


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
    from perfsuite.devices.model import card_file
    from perfsuite.devices.model.calibrate import calibrate

    card = calibrate(arguments.name, arguments.device, arguments.sheet, Path.cwd())
    path = card_file.write(card, Path.cwd())
    return f"{card.title} written to {path.name}; use it with --perf-device=model:{card.name}"


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
    from perfsuite.commands.manual import explain

    return explain(arguments.topic)


def _trend_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the file that --perf-history appends to")


def _trend(arguments: argparse.Namespace) -> str:
    from perfsuite.commands.trend import render, trends
    from perfsuite.remember import history

    return render(trends(history.load(arguments.file)))


def _check_patch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patch", type=Path, help="what pytest --save-baseline --perf-patch wrote")
    parser.add_argument("--baseline-dir", default="baselines", help="the only folder it may touch")
    parser.add_argument("--apply", action="store_true", help="write the checked baselines")


def _check_patch(arguments: argparse.Namespace) -> str:
    from pathlib import PurePosixPath

    from perfsuite.remember.patch import check_patch

    directory = PurePosixPath(arguments.baseline_dir)
    told = check_patch(arguments.patch, directory, Path.cwd(), is_applied=arguments.apply)
    count = "1 baseline" if len(told) == 1 else f"{len(told)} baselines"
    return "\n".join([*told, f"{count} {'written' if arguments.apply else 'well-formed'}"])


def _schema_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "of", choices=("baseline", "readings"), help="a stored baseline, or --perf-json's file"
    )


def _schema(arguments: argparse.Namespace) -> str:
    import json

    from perfsuite.remember import schema as json_schema

    schema = json_schema.baseline_schema() if arguments.of == "baseline" else json_schema.readings_schema()
    return json.dumps(schema, indent=1)


COMMANDS = {
    "doctor": Command(
        "say what can be measured on the GPUs of this machine; fails where there is none",
        _no_arguments,
        _doctor,
    ),
    "calibrate": Command(
        "measure some operators on the device at hand and write its entry for --perf-device=model:NAME",
        _calibrate_arguments,
        _calibrate,
    ),
    "self-test": Command(
        "say how often the gate cries wolf on this machine, and which slowdowns it finds",
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
        "check a patch of new baselines as if it came from a stranger; fails on anything else than baselines",
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
    parsed = parser.parse_args(arguments)
    try:
        print(COMMANDS[parsed.command].run(parsed), flush=True)
    except PerfsuiteError as error:
        print(f"perfsuite: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # `| head` has seen enough; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
