"""Run the command line as a module, as torchrun needs it."""

import os
import sys

from social_xlstm.cli import main

if __name__ == "__main__":
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import record

        main = record(main)  # torchrun then shows the traceback of the process that failed first
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # All is written by now, and torch at times aborts while Python takes its communication threads down:
        # torchrun would call a finished training failed.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)
