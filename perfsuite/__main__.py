"""The commands that need no pytest: python -m perfsuite doctor."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Command(NamedTuple):
    """One subcommand: what it is for, its own arguments, and what it does; returns the exit code."""

    help: str
    run: Callable[[argparse.Namespace], int]
    add_arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None  # noqa: ARG005


def _doctor(_: argparse.Namespace) -> int:
    from perfsuite.doctor import diagnose

    lines, is_able = diagnose()
    print("\n".join(lines))
    return 0 if is_able else 1


COMMANDS = {
    "doctor": Command(
        "say what can be measured on the GPUs of this machine; exits 1 where there is none", _doctor
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand."""
    parser = argparse.ArgumentParser(prog="python -m perfsuite")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, command in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=command.help, description=command.help))
    asked = parser.parse_args(arguments)
    return COMMANDS[asked.command].run(asked)


if __name__ == "__main__":
    sys.exit(main())
