"""How fast the subject is: ratios of two ways each, measured in turn in one run.

    python -m benchmarks.speed [--quick] [--no-compile] [--no-memory] [--json PATH]

Every line runs both ways alternately in this process, so that a busy machine slows both alike, and prints the
median ratio, the middle half of the pairs, and the goal. About four minutes on two cores.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks import speed_loader, speed_model
from benchmarks.interleaved import Row


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer pairs")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile (two minutes)")
    parser.add_argument("--no-memory", action="store_true", help="leave out the 1 GB set")
    parser.add_argument("--json", type=Path, default=Path("speed.json"), help="where (default: %(default)s)")
    arguments = parser.parse_args()
    found = []
    for row in _rows(arguments):
        print(f"{'reached' if row.reached else 'MISSED ':7}  {row.what}\n         {row.goal}: {row.figure}")
        sys.stdout.flush()
        found.append(row.as_json())
    result = {"threads": torch.get_num_threads(), "torch": torch.__version__, "rows": found}
    arguments.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {arguments.json}")


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    yield from speed_loader.rows(quick=arguments.quick, memory=not arguments.no_memory)
    yield from speed_model.rows(quick=arguments.quick, compiled=not arguments.no_compile)


if __name__ == "__main__":
    main()
