"""Commands beside pytest: `python -m perfsuite COMMAND`; each row of the table is one command."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    from perfsuite.doctor import diagnose

    return "\n".join(diagnose())


COMMANDS = {
    "doctor": Command(
        "say what can be measured on the GPUs of this machine; fails where there is none",
        _no_arguments,
        _doctor,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser("python -m perfsuite", description=__doc__)
    chosen = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(chosen.add_parser(name, help=command.help))
    parsed = parser.parse_args(arguments)
    try:
        print(COMMANDS[parsed.command].run(parsed))
    except PerfsuiteError as error:
        print(f"perfsuite: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
