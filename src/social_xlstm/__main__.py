"""`python -m social_xlstm` is the command line; torchrun starts it this way."""

import sys

from social_xlstm.cli import main

if __name__ == "__main__":
    sys.exit(main())
