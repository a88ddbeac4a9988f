"""Entry point of `python -m perfsuite`: doctor, self-test, explain, trend and the other commands."""

import sys

from perfsuite.commands.parser import main

if __name__ == "__main__":
    sys.exit(main())
