"""The command line: one clear message and exit code 2 for wrong input, never a traceback."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from social_xlstm.cli.arguments import build_parser
from social_xlstm.errors import InputError

WRONG_INPUT, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        # Imported only now: `--help` and wrong arguments need not wait for torch.
        return import_module(f"social_xlstm.cli.{arguments.command}").run(arguments)
    except InputError as error:
        print(f"social-xlstm {arguments.command}: {error}", file=sys.stderr)
    except BrokenPipeError:
        # The reader (`| head`) has gone; what Python still holds back must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(
            f"social-xlstm {arguments.command}: {error}; check the path, its rights and the disk",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print(f"\nsocial-xlstm {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return WRONG_INPUT
