"""The second document's training on one rank against several: a table, and a page.

    python -m benchmarks.document_002 [--ranks 4] [--html document_002.html] [PYTEST OPTIONS…]

Without --ranks: one for each GPU, on a machine without GPUs two. On a CPU the ranks share its cores, and the
efficiency says how well they do that.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import torch


def main() -> int:
    """Start the ranks and return pytest's exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=max(torch.cuda.device_count(), 2), help="(%(default)s)")
    parser.add_argument("--html", default="document_002.html", help="where to write the page (%(default)s)")
    arguments, rest = parser.parse_known_args()
    if arguments.ranks < 2:
        parser.error("--ranks: one rank has nobody to be compared with; say 2 or more")
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={arguments.ranks}",
            *("-m", "pytest", "--perf", str(Path(__file__).with_name("several_gpus"))),
            *("-p", "no:cacheprovider", "-q", f"--perf-html={arguments.html}", "--perf-explain", *rest),
        ],
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
